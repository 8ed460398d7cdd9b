"""The launcher's own metrics: what the workers wrote, what vLLM counts, how the process is. Computed when scraped.

A Collector, not a set of live objects: nothing can be forgotten to update, and a scrape shows one moment. Counters are
absolute values read elsewhere, so they are rendered as they are. Works while vLLM loads, hangs and after it died, which is
when it is needed: nothing here waits for vLLM (scraper.py does). What exists is declared in metrics.py.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from importlib import metadata
from typing import Any

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector

from launcher.acceptance import Acceptance
from launcher.engine import Engine, Exit, Scrape
from launcher.ledger import Totals, Worker
from launcher.metrics import SPECS
from launcher.states import START, Phase
from radiance.settings import Mode
from radiance.status import HeadState
from radiance.status import Phase as WorkerPhase

CONTENT_TYPE = CONTENT_TYPE_LATEST
FAMILIES: dict[str, Any] = {
    "gauge": GaugeMetricFamily,
    "counter": CounterMetricFamily,
    "histogram": HistogramMetricFamily,
}
VERDICTS = ("ok", "pending", "failed")
Rows = Sequence[tuple[Sequence[str], float]]


def parse(text: str, beginning: tuple[str, ...] | None = None) -> list[Metric]:
    """vLLM's /metrics as families; raises ValueError on text that is none. Only names that begin so, if told: parsing costs."""
    if beginning is not None:
        lines = (line for line in text.splitlines() if line.removeprefix("# TYPE ").startswith(beginning))
        text = "\n".join([*lines, ""])
    return list(text_string_to_metric_families(text))


class RadianceCollector(Collector):
    def __init__(self, engine: Engine, registry: CollectorRegistry | None = None) -> None:
        self._engine = engine
        if registry is not None:
            registry.register(self)

    def describe(self) -> Iterable[Metric]:
        """Empty: registering must not read anything."""
        return []

    def collect(self) -> Iterator[Metric]:
        engine, scrape = self._engine, self._engine.scrape
        workers, errors = engine.workers()
        yield from _launcher(engine)
        yield from _vllm(engine)
        if engine.plan.leader is None:  # a headless node has no API to read
            yield from _scrape(engine, scrape)
            if engine.plan.depth is not None or scrape.spec:
                yield from _acceptance(scrape.acceptance)
        yield _family("status_file_errors", [((), len(errors))])
        yield _family("worker_heartbeat_timestamp_seconds", [(w.labels, w.snapshot.heartbeat) for w in workers])
        yield _family("worker_problem", [(w.labels, float(bool(w.snapshot.problem))) for w in workers])
        yield from _states(engine, workers)
        yield from _counters(engine.ledger.totals())
        yield from _thresholds(engine)
        yield from passed_through(scrape.families)


def render(engine: Engine) -> bytes:
    registry = CollectorRegistry()
    RadianceCollector(engine, registry=registry)
    return generate_latest(registry)


@cache
def versions() -> dict[str, str]:
    found = {}
    for name, distribution in (("version", "radiance-vllm"), ("vllm", "vllm")):
        try:
            found[name] = metadata.version(distribution)
        except metadata.PackageNotFoundError:
            found[name] = "unknown"
    return found


def passed_through(families: Iterable[Metric]) -> Iterator[Metric]:
    """vLLM's families as they are, but none of ours and none twice: either would make Prometheus refuse the whole answer."""
    known: dict[str, Metric] = {}
    for family in families:
        if family.name.startswith("radiance_"):
            continue
        mine = known.setdefault(family.name, Metric(family.name, family.documentation, family.type))
        mine.samples += family.samples
    for family in known.values():
        family.samples = list({(s.name, frozenset(s.labels.items())): s for s in family.samples}.values())
        yield family


def _family(short: str, rows: Rows = ()) -> Any:
    spec = SPECS[short]
    family = FAMILIES[spec.kind](spec.family, spec.help, labels=spec.labels)
    for labels, value in rows:
        family.add_metric(list(labels), value)
    return family


def _choice(short: str, options: Iterable[str], chosen: str) -> Metric:
    return _family(short, [((option,), float(option == chosen)) for option in options])  # type: ignore[no-any-return]


def _launcher(engine: Engine) -> Iterator[Metric]:
    plan, found = engine.plan, versions()
    yield _family("build_info", [((found["version"], found["vllm"], plan.profile), 1)])
    yield _family("launcher_start_time_seconds", [((), engine.started)])
    yield _choice("launcher_phase", map(str, Phase), str(engine.phase))
    yield _family("launcher_phase_timestamp_seconds", [((str(phase),), at) for phase, at in list(engine.since.items())])
    spent = engine.timeline.durations()
    yield _family("startup_phase_duration_seconds", [((str(phase),), spent[phase]) for phase in START])
    yield _family("startup_budget_seconds", [((), plan.startup_budget_seconds)])
    yield _family("ready", [((), float(engine.readiness()[0]))])
    yield _choice("fast_draft_mode", (mode.name.lower() for mode in Mode), plan.mode.name.lower())
    yield _family("fallback_active", [((), float(engine.fell_back))])
    yield _family("speculation_configured", [((), float(plan.depth is not None))])


def _vllm(engine: Engine) -> Iterator[Metric]:
    yield _family("vllm_up", [((), float(engine.up))])
    yield _family("vllm_start_time_seconds", [((), engine.begun)] if engine.life else [])
    yield _family("vllm_restarts", [((), engine.restarts)])
    yield _family("vllm_exits", [((str(reason),), engine.exits[reason]) for reason in Exit])
    yield _family("vllm_exit_code", [] if engine.exit_code is None else [((), engine.exit_code)])


def _scrape(engine: Engine, scrape: Scrape) -> Iterator[Metric]:
    yield _family("vllm_scrape_success", [((), float(scrape.success))])
    yield _family("vllm_scrape_duration_seconds", [((), scrape.seconds)])
    yield _family("vllm_scrape_timestamp_seconds", [] if scrape.at is None else [((), scrape.at)])
    yield _family("vllm_spec_metrics_present", [((), float(scrape.spec))])
    yield _family("vllm_wedged", [((), float(bool(engine.wedge())))])


def _acceptance(found: Acceptance) -> Iterator[Metric]:
    yield _family("drafts", [((), found.drafts)])
    yield _family("draft_tokens", [((), found.draft_tokens)])
    yield _family("accepted_tokens", [((), found.accepted_tokens)])
    yield _family("accepted_tokens_position", [((str(k),), count) for k, count in enumerate(found.per_position)])
    histogram = _family("accepted_tokens_per_draft")
    histogram.add_metric([], [(le, float(count)) for le, count in found.buckets()], found.accepted_tokens)
    yield histogram


def _states(engine: Engine, workers: list[Worker]) -> Iterator[Metric]:
    yield _choice("draft_head_verdict", VERDICTS, engine.verdict().word)
    heads = [((*worker.labels, head.name), head) for worker in workers for head in worker.snapshot.heads]
    states = [((*who, str(state), head.reason if state is head.state else ""), float(state is head.state))
              for who, head in heads for state in HeadState]  # fmt: skip
    if not heads and engine.plan.mode is Mode.OFF:
        states = [(("", "", "", str(state), ""), float(state is HeadState.OFF)) for state in HeadState]
    yield _family("draft_head_state", states)
    for short, field in (
        ("draft_head_state_timestamp_seconds", "since"),
        ("draft_head_packed_bytes", "packed_bytes"),
        ("draft_head_peak_bytes", "peak_bytes"),
        ("draft_head_quantise_seconds", "quantise_seconds"),
        ("draft_head_rerank_rows", "rerank"),
    ):
        yield _family(short, [(who, getattr(head, field)) for who, head in heads])
    fired = [(who, head.lazy_fired_at) for who, head in heads if head.lazy_fired]
    yield _family("draft_head_lazy_quantisation_timestamp_seconds", fired)


def _counters(heads: dict[tuple[str, str, str], Totals]) -> Iterator[Metric]:
    lazy = [((*who, str(phase)), float(total.lazy[phase])) for who, total in heads.items() for phase in WorkerPhase]
    yield _family("draft_head_lazy_quantisations", lazy)
    for field in ("calls", "rows", "rescued_rows", "checked_rows", "disagreed_rows", "missed_rows", "repacked"):
        yield _family(f"draft_head_{field}", [(who, getattr(total, field)) for who, total in heads.items()])
    stock = [((*who, why), float(n)) for who, total in heads.items() for why, n in sorted(total.stock_calls.items())]
    yield _family("draft_head_stock_calls", stock)
    latency = _family("draft_head_latency_seconds")
    for who, total in heads.items():
        for clock, (counts, seconds) in total.latency.items():
            latency.add_metric([*who, clock], _cumulative(counts), seconds)
    yield latency


def _cumulative(counts: Counter[float]) -> list[tuple[str, float]]:
    buckets, total = [], 0
    for bound in sorted(counts):
        total += counts[bound]
        buckets.append(("+Inf" if bound == float("inf") else repr(float(bound)), float(total)))
    return buckets


def _thresholds(engine: Engine) -> Iterator[Metric]:
    """From the profile, so that one rule file fits all models. Absent where the profile says nothing: no alert then."""
    for short, value in (
        ("expected_accepted_tokens_per_draft_min", engine.plan.acceptance_per_draft_min),
        ("expected_draft_head_latency_seconds_max", engine.plan.draft_head_latency_seconds_max),
    ):
        yield _family(short, [] if value is None else [((), value)])
