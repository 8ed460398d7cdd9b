"""The panels of the dashboard, row by row: what is asked, in PromQL, and how it is shown. dashboard.py makes JSON of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

HERE = '{instance=~"$instance"}'


@dataclass(frozen=True)
class Panel:
    title: str
    #: timeseries, stat, heatmap, barchart or state-timeline
    kind: str
    #: (expression, legend); the legend is a template of Grafana
    queries: Sequence[tuple[str, str]]
    text: str = ""
    unit: str = "short"
    width: int = 8
    height: int = 8


def _rate(name: str, extra: str = "", by: str = "instance") -> str:
    return f"sum by ({by}) (rate({name}{_in(extra)}[$__rate_interval]))"


def _in(extra: str = "") -> str:
    return HERE if not extra else HERE[:-1] + f", {extra}}}"


def _quantile(q: float) -> tuple[str, str]:
    return (
        f"histogram_quantile({q}, {_rate('radiance_draft_head_latency_seconds_bucket', by='le, instance')})",
        f"p{q * 100:g} {{{{instance}}}}",
    )


ROWS: dict[str, list[Panel]] = {
    "Acceptance": [
        Panel(
            "Accepted tokens per draft",
            "timeseries",
            [
                (f"{_rate('radiance_accepted_tokens_total')} / {_rate('radiance_drafts_total')}", "{{instance}}"),
                (f"radiance_expected_accepted_tokens_per_draft_min{HERE}", "floor of the profile {{instance}}"),
            ],
            "Without the bonus token of the target. Below the floor something is wrong with the drafter.",
        ),
        Panel(
            "Accepted tokens per draft, distribution",
            "barchart",
            [("sum by (le) (increase(radiance_accepted_tokens_per_draft_bucket" + HERE + "[$__range]))", "{{le}}")],
            "Exact: how many drafts of the chosen time had at most le accepted tokens, as differences of buckets.",
        ),
        Panel(
            "Accepted at each position",
            "timeseries",
            [
                (
                    _rate("radiance_accepted_tokens_position_total", by="position")
                    + " / ignoring (position) group_left "
                    + f"sum (rate(radiance_drafts_total{HERE}[$__rate_interval]))",
                    "position {{position}}",
                )
            ],
            "Share of drafts in which the token at this position was accepted.",
            "percentunit",
        ),
    ],
    "Draft head": [
        Panel(
            "Latency of a call",
            "timeseries",
            [
                _quantile(0.5),
                _quantile(0.95),
                _quantile(0.99),
                (f"radiance_expected_draft_head_latency_seconds_max{HERE}", "ceiling of the profile {{instance}}"),
            ],
            unit="s",
        ),
        Panel(
            "Latency, all calls",
            "heatmap",
            [(_rate("radiance_draft_head_latency_seconds_bucket", by="le"), "{{le}}")],
            unit="s",
        ),
        Panel(
            "State",
            "state-timeline",
            [
                (
                    f"max by (instance, engine, rank, head, state, reason) (radiance_draft_head_state{HERE}) == 1",
                    "{{instance}} rank {{rank}}: {{state}} {{reason}}",
                )
            ],
            "off, waiting, active, shadow or declined; a row for each state a head was in.",
        ),
        Panel(
            "Calls per second",
            "timeseries",
            [
                (_rate("radiance_draft_head_calls_total"), "2-bit {{instance}}"),
                (
                    _rate("radiance_draft_head_stock_calls_total", by="instance, reason"),
                    "stock, {{reason}} {{instance}}",
                ),
            ],
        ),
        Panel(
            "Rescued rows",
            "timeseries",
            [
                (
                    f"{_rate('radiance_draft_head_rescued_rows_total')} / {_rate('radiance_draft_head_rows_total')}",
                    "{{instance}}",
                )
            ],
            "Share of draft rows whose exact winner was not the coarse winner: what the exact rerank brings.",
            "percentunit",
        ),
        Panel(
            "Checked against the stock head",
            "timeseries",
            [
                (
                    f"{_rate('radiance_draft_head_missed_rows_total')} / {_rate('radiance_draft_head_checked_rows_total')}",
                    "winner no candidate {{instance}}",
                ),
                (
                    f"{_rate('radiance_draft_head_disagreed_rows_total')} / {_rate('radiance_draft_head_checked_rows_total')}",
                    "other argmax {{instance}}",
                ),
            ],
            "Shadow mode, or RADIANCE_SHADOW_SAMPLE.",
            "percentunit",
        ),
        Panel(
            "Packed copy",
            "stat",
            [(f"sum by (instance) (radiance_draft_head_packed_bytes{HERE})", "{{instance}}")],
            unit="bytes",
            width=6,
            height=5,
        ),
        Panel(
            "Quantised in",
            "stat",
            [(f"max by (instance) (radiance_draft_head_quantise_seconds{HERE})", "{{instance}}")],
            unit="s",
            width=6,
            height=5,
        ),
        Panel(
            "Quantised at the first call",
            "stat",
            [
                (
                    f"sum by (instance, phase) (radiance_draft_head_lazy_quantisations_total{HERE})",
                    "{{phase}} {{instance}}",
                )
            ],
            "0 everywhere: every head was final when the drafter was loaded.",
            width=12,
            height=5,
        ),
    ],
    "Server": [
        Panel(
            "Phase",
            "state-timeline",
            [(f"radiance_launcher_phase{HERE} == 1", "{{instance}}: {{phase}}")],
        ),
        Panel(
            "Health",
            "timeseries",
            [
                (f"radiance_ready{HERE}", "ready {{instance}}"),
                (f"radiance_vllm_up{HERE}", "vLLM up {{instance}}"),
                (f"radiance_vllm_wedged{HERE}", "wedged {{instance}}"),
                (f"radiance_vllm_scrape_success{HERE}", "vLLM's metrics read {{instance}}"),
            ],
        ),
        Panel(
            "Sign of life of workers",
            "timeseries",
            [(f"time() - radiance_worker_heartbeat_timestamp_seconds{HERE}", "{{instance}} rank {{rank}}")],
            unit="s",
        ),
        Panel(
            "Tokens per second",
            "timeseries",
            [("sum by (model_name) (rate(vllm:generation_tokens_total[$__rate_interval]))", "{{model_name}}")],
            "vLLM's own figure: scrape its port, or serve with --passthrough.",
        ),
        Panel(
            "KV cache in use",
            "timeseries",
            [("max by (model_name, engine) (vllm:kv_cache_usage_perc)", "{{model_name}} engine {{engine}}")],
            unit="percentunit",
        ),
        Panel(
            "Requests",
            "timeseries",
            [
                ("sum by (model_name) (vllm:num_requests_running)", "running {{model_name}}"),
                ("sum by (model_name) (vllm:num_requests_waiting)", "waiting {{model_name}}"),
            ],
        ),
    ],
}
