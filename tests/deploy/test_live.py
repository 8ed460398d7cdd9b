"""The files of deploy/ in the real programs: Prometheus scrapes a real exporter, Alertmanager brings an alert to a webhook."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field

import pytest
from figures import BUCKETS, Upstream, head, put, serving_engine, serving_upstream, vllm_text
from panels import ROWS
from promql import rules
from stack import Watch, filled, watching

from launcher import web
from launcher.engine import Engine
from radiance.status import HeadState, Latency
from tests.processes import until

QUERIES = [expr for row in ROWS.values() for panel in row for expr, _ in panel.queries]


@dataclass
class Stack:
    """`drafts` counts what traffic() has made."""

    upstream: Upstream
    engine: Engine
    close_radiance: Callable[[], None]
    drafts: int = 1000
    watch: Watch = field(init=False)

    def traffic(self) -> None:
        """Some more drafts, all of whose tokens are accepted at the same rates as before, and calls of the head."""
        self.drafts += 100
        calls = [0, 4 * self.drafts, 0, 0]
        put(
            self.engine,
            head(
                calls=sum(calls),
                rows=8 * self.drafts,
                rescued_rows=self.drafts,
                checked_rows=1000 * self.drafts,
                missed_rows=10 * self.drafts,
                latency=Latency(BUCKETS, calls, 0.0002 * sum(calls)),
            ),
        )
        self.upstream.text = vllm_text(self.drafts, tuple(int(share * self.drafts) for share in (0.9, 0.8, 0.7)))


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """One server with two ranks, of which the second's head has declined; Prometheus and Alertmanager around it."""
    folder = tmp_path_factory.mktemp("stack")
    with ExitStack() as outer, ExitStack() as radiance:
        upstream = outer.enter_context(serving_upstream())
        engine = serving_engine(folder, upstream.port, passthrough=True)
        put(engine, head(state=HeadState.DECLINED, reason="bias"), rank=1, pid=200)
        made = Stack(upstream, engine, radiance.close)
        made.traffic()  # before anything is read, so that all figures are on the same lines from the start
        port = radiance.enter_context(web.serving(engine, "127.0.0.1", 0))
        made.watch = outer.enter_context(watching(folder, port))
        yield made


def test_the_recording_rules_have_the_right_values(stack: Stack) -> None:
    wanted = {
        "radiance:accepted_tokens_per_draft:mean15m": 0.9 + 0.8 + 0.7,
        "radiance:draft_head_latency_seconds:mean5m": 0.0002,
        "radiance:draft_head_rescued_rows:ratio5m": 1 / 8,
        "radiance:draft_head_missed_rows:ratio30m": 1 / 100,
    }
    assert {rule["record"] for rule in rules() if "record" in rule} == {*wanted, "radiance:drafts:increase15m"}

    recorded: dict[str, float] = {}

    def right() -> bool:
        """An evaluation beside a scrape that is not yet committed may divide figures of two scrapes; the next one does not.
        1 %: three counts of accepted tokens are rounded down."""
        stack.traffic()
        recorded.clear()
        recorded.update({name: stack.watch.value(name) for name in wanted if stack.watch.query(name)})
        return recorded == pytest.approx(wanted, rel=0.01)

    try:
        until(right, "every recording rule has the right value")
    finally:
        print(recorded)  # shown if it fails
    assert stack.watch.value("radiance:drafts:increase15m") > 0


@pytest.mark.parametrize("expr", QUERIES)
def test_every_panel_shows_something(stack: Stack, expr: str) -> None:
    until(lambda: stack.watch.query(filled(expr)), f"data for {filled(expr)}")


def test_an_alert_fires_for_the_rank_it_is_about_and_reaches_a_receiver(stack: Stack) -> None:
    expr = 'ALERTS{alertname="RadianceDraftHeadDeclined", alertstate="firing"}'
    [alert] = until(lambda: stack.watch.query(expr), "the alert fires")
    assert {alert["metric"][name] for name in ("rank", "reason")} == {"1", "bias"}
    [post] = until(
        lambda: [p for p in stack.watch.posts if p["groupLabels"] == {"alertname": "RadianceDraftHeadDeclined"}][:1],
        "Alertmanager calls the webhook",
    )
    assert post["alerts"][0]["status"] == "firing"
    assert post["alerts"][0]["annotations"]["runbook_url"].endswith("#radiancedraftheaddeclined")
    assert "rank 1" in post["alerts"][0]["annotations"]["description"]


def test_what_is_in_order_raises_no_alert(stack: Stack) -> None:
    critical = [rule["alert"] for rule in rules() if rule.get("labels", {}).get("severity") == "critical"]
    assert len(critical) >= 5
    for name in [*critical, "RadianceDraftHeadPending", "RadianceSpecMetricsMissing"]:
        assert stack.watch.query(f'ALERTS{{alertname="{name}"}}') == [], name


def test_a_launcher_that_is_gone_is_on_its_way_to_an_alert(stack: Stack) -> None:
    """Last of this file: it closes the launcher's port. That pending becomes firing after 2 minutes is promtool's to test."""
    stack.close_radiance()
    [alert] = until(lambda: stack.watch.query('ALERTS{alertname="RadianceDown"}'), "the alert is pending")
    assert alert["metric"]["alertstate"] in ("pending", "firing")
