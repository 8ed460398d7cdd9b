"""A real `vllm serve` under the launcher, a real Prometheus and Alertmanager: figures read back by query, then the engine dies."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import httpx
import pytest
from panels import ROWS
from stack import Watch, filled, watching

from tests.e2e import checkpoints, harness
from tests.processes import free_port, running, until

pytestmark = pytest.mark.e2e
EXPECTED = {"acceptance_per_draft_min": 0.0, "draft_head_latency_seconds_max": 10.0}


@dataclass
class Served:
    watch: Watch
    process: subprocess.Popen[bytes]
    metrics: str

    def status(self) -> dict[str, Any]:
        return dict(httpx.get(f"{self.metrics}/status", trust_env=False, timeout=30).json())


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A DFlash drafter, whose head is not final when it is loaded, after some completions."""
    folder = tmp_path_factory.mktemp("served")
    target = checkpoints.tiny_qwen35(folder / "target")
    drafter = {"path": str(checkpoints.dflash(folder / "drafter", target))}
    speculative = {"method": "dflash", "num_speculative_tokens": 3}
    harness.write_profile(folder, "live", target, speculative, drafter=drafter, fast_draft="enabled", expected=EXPECTED)
    api, port = free_port(), free_port()
    command = [sys.executable, "-m", "launcher", "serve", "--profile", "live", "--profiles-dir", str(folder)]
    command += ["--host", "127.0.0.1", "--port", str(api), "--metrics-port", str(port), "--passthrough"]
    command += ["--max-restarts", "0"]  # a killed engine is to end the launcher; that it comes back is tested elsewhere
    log = folder / "serve.log"
    env = {name: value for name, value in os.environ.items() if not name.startswith("RADIANCE_")}
    with (
        running(command, log, env=env) as process,
        watching(folder, port, patience="1s") as watch,
        httpx.Client(trust_env=False, timeout=120) as http,
    ):
        while not watch.query("radiance_ready == 1"):  # may take minutes; the launcher ends at the profile's budget
            assert process.poll() is None, log.read_text()[-4000:]
            time.sleep(0.5)
        for prompt in harness.PROMPTS:
            body = {"model": "tiny", "prompt": prompt, "max_tokens": harness.TOKENS, "temperature": 0}
            http.post(f"http://127.0.0.1:{api}/v1/completions", json=body).raise_for_status()
        yield Served(watch, process, f"http://127.0.0.1:{port}")


def test_acceptance_is_vllms_own(served: Served) -> None:
    watch = served.watch
    drafts = served.status()["acceptance"]["drafts"]
    assert drafts > 8
    until(lambda: watch.value("radiance_drafts_total") == drafts, "Prometheus has scraped the last draft")
    for name in ("drafts", "draft_tokens", "accepted_tokens"):
        assert watch.value(f"radiance_{name}_total") == watch.value(f"sum(vllm:spec_decode_num_{name}_total)")
    for k in range(3):
        reached = watch.value(f'sum(vllm:spec_decode_num_accepted_tokens_per_pos_total{{position="{k}"}})')
        assert watch.value(f'radiance_accepted_tokens_per_draft_bucket{{le="{k}.0"}}') == drafts - reached


def test_the_lazy_quantisation_and_every_call_are_counted(served: Served) -> None:
    watch = served.watch
    assert watch.value("sum(radiance_draft_head_lazy_quantisations_total)") == 1
    assert watch.value('sum(radiance_draft_head_state{state="active"})') == 1
    calls, timed = "sum(radiance_draft_head_calls_total)", "sum(radiance_draft_head_latency_seconds_count)"
    until(lambda: watch.value(calls) == watch.value(timed) > 8, "as many latencies as calls")


@pytest.mark.parametrize("expr", [expr for row in ROWS.values() for panel in row for expr, _ in panel.queries])
def test_every_panel_shows_something(served: Served, expr: str) -> None:
    until(lambda: served.watch.query(filled(expr)), f"data for {filled(expr)}")


def test_a_killed_engine_is_an_alert_that_reaches_a_receiver(served: Served) -> None:
    """Last of this file. Until here nothing was wrong; then vLLM gets SIGKILL and the launcher ends."""
    firing = 'ALERTS{alertstate="firing"}'
    assert served.watch.query(firing) == []
    os.kill(served.status()["workers"][0]["pid"], signal.SIGKILL)
    assert served.process.wait(120) == 70
    until(lambda: served.watch.query(firing + ' and ALERTS{alertname="RadianceDown"}'), "RadianceDown fires")
    until(
        lambda: [p for p in served.watch.posts if p["groupLabels"] == {"alertname": "RadianceDown"}],
        "the webhook is called",
    )
