"""Every metric of the launcher's port: name, type, labels, meaning. The exporter cannot emit what is not in this table.

Rules, dashboard and docs/metrics.md are tested against it. `python -m launcher.metrics` prints docs/metrics.md.
Names: base units, _total (added to counters) for what only grows, few labels with few values.
"""

from __future__ import annotations

from dataclasses import dataclass

PREFIX = "radiance_"
WORKER = ("engine", "rank")
HEAD = (*WORKER, "head")


@dataclass(frozen=True)
class Spec:
    short: str
    kind: str
    help: str
    labels: tuple[str, ...] = ()

    @property
    def family(self) -> str:
        return PREFIX + self.short

    @property
    def name(self) -> str:
        """As it is queried; of a histogram, what its _bucket, _sum and _count begin with."""
        return f"{self.family}_total" if self.kind == "counter" else self.family


def _gauge(short: str, text: str, *labels: str) -> Spec:
    return Spec(short, "gauge", text, labels)


def _counter(short: str, text: str, *labels: str) -> Spec:
    return Spec(short, "counter", text, labels)


def _histogram(short: str, text: str, *labels: str) -> Spec:
    return Spec(short, "histogram", text, labels)


LAUNCHER = (
    _gauge("build_info", "Always 1; what runs.", "version", "vllm", "profile"),
    _gauge("launcher_start_time_seconds", "When this launcher started, Unix time."),
    _gauge("launcher_phase", "Where the server is in its life. 1 for the phase it is in.", "phase"),
    _gauge("launcher_phase_timestamp_seconds", "When each phase was last entered, Unix time.", "phase"),
    _gauge(
        "startup_phase_duration_seconds",
        "Time that the last start of vLLM, or the one going on, spent in each phase.",
        "phase",
    ),
    _gauge("startup_budget_seconds", "How long a start may take before the launcher ends it (profile)."),
    _gauge("ready", "1 when /readyz answers 200."),
    _gauge("fast_draft_mode", "What was asked for: off, on (2-bit head) or shadow. 1 for the one.", "mode"),
    _gauge(
        "fallback_active", "1 after the launcher fell back to the stock head because acceptance stayed under the floor."
    ),
    _gauge("speculation_configured", "1 when the profile drafts at all."),
)
VLLM = (
    _gauge("vllm_up", "1 when vLLM's /health last answered 200; on a headless node, when its leader is ready."),
    _gauge("vllm_start_time_seconds", "When the vLLM that runs now was started, Unix time; absent before the first."),
    _counter("vllm_restarts", "Times the launcher started vLLM again."),
    _counter("vllm_exits", "Times a vLLM ended, by reason.", "reason"),
    _gauge("vllm_exit_code", "Exit code of the vLLM that ended last; absent while it runs."),
    _gauge("vllm_scrape_success", "1 when the last reading of vLLM's /metrics went well."),
    _gauge("vllm_scrape_duration_seconds", "Time that reading took."),
    _gauge("vllm_scrape_timestamp_seconds", "When vLLM's /metrics was last read well; absent until it was."),
    _gauge("vllm_spec_metrics_present", "1 when vLLM exports its counters of drafts."),
    _gauge("vllm_wedged", "1 when requests run and no token came, or /health did not answer, for --wedge-seconds."),
)
ACCEPTANCE = (
    _counter("drafts", "Drafts the target verified, over all lives of vLLM under this launcher."),
    _counter("draft_tokens", "Tokens in those drafts."),
    _counter("accepted_tokens", "Draft tokens the target accepted."),
    _counter(
        "accepted_tokens_position", "Drafts in which the token at this position (from 0) was accepted.", "position"
    ),
    _histogram(
        "accepted_tokens_per_draft", "Accepted tokens of each draft: how many drafts had at most le of them; exact."
    ),
    _gauge("expected_accepted_tokens_per_draft_min", "The profile's floor for accepted tokens per draft."),
)
WORKERS = (
    _gauge("status_file_errors", "Status files of workers that could not be read at this scrape."),
    _gauge("worker_heartbeat_timestamp_seconds", "When the worker last wrote its state, Unix time.", *WORKER),
    _gauge(
        "worker_problem",
        "1 when the plugin could not look for a draft head in this worker; /status says why.",
        *WORKER,
    ),
)
HEADS = (
    _gauge(
        "draft_head_verdict",
        "Do all heads do what was asked: ok, pending (may still come) or failed. 1 for the one.",
        "verdict",
    ),
    _gauge("draft_head_state", "State of each draft head. 1 for the state it is in.", *HEAD, "state", "reason"),
    _gauge("draft_head_state_timestamp_seconds", "When the head entered its state, Unix time.", *HEAD),
    _gauge("draft_head_packed_bytes", "Memory of the packed 2-bit copy.", *HEAD),
    _gauge("draft_head_peak_bytes", "Most memory taken while packing.", *HEAD),
    _gauge("draft_head_quantise_seconds", "Time the last quantisation took.", *HEAD),
    _gauge("draft_head_rerank_rows", "Rows of the head rescored exactly for each draft row.", *HEAD),
    _counter(
        "draft_head_lazy_quantisations", "Quantisations that had to wait for the first call, by phase.", *HEAD, "phase"
    ),
    _gauge("draft_head_lazy_quantisation_timestamp_seconds", "When the last of them happened, Unix time.", *HEAD),
    _counter("draft_head_repacked", "Times the copy was packed again because the weights were replaced.", *HEAD),
    _counter("draft_head_calls", "Calls that the 2-bit head answered.", *HEAD),
    _counter("draft_head_rows", "Draft rows in those calls.", *HEAD),
    _counter("draft_head_rescued_rows", "Rows whose exact winner was not the coarse winner.", *HEAD),
    _counter("draft_head_stock_calls", "Calls that the stock head answered, by reason.", *HEAD, "reason"),
    _counter("draft_head_checked_rows", "Rows compared with the stock head (shadow, or sampled checks).", *HEAD),
    _counter("draft_head_disagreed_rows", "Compared rows with another argmax than the stock head.", *HEAD),
    _counter("draft_head_missed_rows", "Compared rows whose exact winner was no candidate.", *HEAD),
    _histogram("draft_head_latency_seconds", "Duration of a draft-head call; clock is host or device.", *HEAD, "clock"),
    _gauge("expected_draft_head_latency_seconds_max", "The profile's ceiling for the mean of that duration."),
)
GROUPS = {
    "Launcher": LAUNCHER,
    "vLLM": VLLM,
    "Acceptance": ACCEPTANCE,
    "Workers": WORKERS,
    "Draft heads": HEADS,
}
SPECS = {spec.short: spec for group in GROUPS.values() for spec in group}

INTRO = """\
# Metrics

The launcher's port (9410 unless `--metrics-port` says otherwise) answers `/metrics` from the first second, while vLLM loads,
hangs or is dead. This page is made from `launcher/metrics.py` by `make docs`.

* `engine` counts the data-parallel engines of one server from 0, `rank` is a worker's rank in its engine, `head` the place of
  the head in the drafter.
* Counters are summed over all vLLM processes of one launcher: a restarted vLLM continues them. What a vLLM counted between the
  last reading and its death is not in them (a second's worth).
* With D drafts and P[k] drafts whose token k was accepted, bucket `le=k` of accepted tokens per draft is D - P[k]: the exact
  histogram, from vLLM's own counters.
* vLLM's own metrics (`vllm:...`) are on the API port. `radiance serve --passthrough` puts them on this port as well.
* vLLM is read once a second in the background. `radiance_vllm_scrape_timestamp_seconds` says how old its figures are.
* A headless node of a model over several nodes has no API: `vllm_scrape_*`, `vllm_spec_metrics_present` and all acceptance are its
  leader's, `vllm_up` and `ready` follow it.
"""


def page() -> str:
    """docs/metrics.md."""
    parts = [INTRO]
    for title, group in GROUPS.items():
        rows = [f"| `{s.name}` | {s.kind} | {', '.join(s.labels)} | {s.help} |" for s in group]
        parts.append("\n".join([f"## {title}", "", "| name | type | labels | meaning |", "|---|---|---|---|", *rows]))
    return "\n\n".join(part.strip() for part in parts) + "\n"


if __name__ == "__main__":
    print(page(), end="")
