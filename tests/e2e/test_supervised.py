"""One launcher on a real CPU vLLM through all that supervision does: fall-back, an engine that is killed, one that hangs, a
stop while a client streams.

The 2-bit head is sabotaged (random proposals), so acceptance is 0 and under the profile's floor. The tests of this file are
one story, in order; it starts vLLM four times, 40 s each.
"""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import psutil
import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests import processes
from tests.e2e import checkpoints, harness
from tests.e2e.conftest import MTP
from tests.e2e.server import STREAMED, Server
from tests.processes import free_port, until

pytestmark = pytest.mark.e2e
KEY = "sk-e2e-never-to-be-seen-1234"
TOKEN = "hf_e2eNeverToBeSeen"
HEADERS = {"Authorization": f"Bearer {KEY}"}


@contextmanager
def start(folder: Path, *options: str | Path) -> Iterator[Server]:
    api, port = free_port(), free_port()
    command = [harness.BIN / "radiance", "serve", "--profile", "story", "--profiles-dir", folder, "--host", "127.0.0.1"]
    command += ["--port", str(api), "--metrics-port", str(port), *options]
    paths = [str(harness.HERE / "sabotage"), *filter(None, [os.environ.get("PYTHONPATH")])]
    mark = processes.mark()
    env = {name: value for name, value in os.environ.items() if not name.startswith("RADIANCE_")}
    env |= {"SABOTAGE": "random", "PYTHONPATH": os.pathsep.join(paths), "HF_TOKEN": TOKEN, **mark}
    with processes.running(command, folder / "serve.log", env=env, cwd=folder) as process:
        yield Server(
            process, folder / "serve.log", mark, f"http://127.0.0.1:{api}", f"http://127.0.0.1:{port}", headers=HEADERS
        )


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("supervised")
    target = checkpoints.tiny_qwen35(made / "target")
    floor = {"acceptance_per_draft_min": 1.0}
    harness.write_profile(made, "story", target, MTP, fast_draft="enabled", expected=floor)
    (made / "key").write_text(f"{KEY}\n")
    return made


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[Server]:
    more = [
        "--fallback-after-seconds",
        "1",
        "--restart-delay-seconds",
        "0.1",
        "--grace-seconds",
        "120",
        "--wedge-seconds",
        "30",
    ]
    with start(folder, "--log-format", "json", "--api-key-file", folder / "key", *more) as started:
        yield started


def test_it_packs_warms_and_gets_ready(server: Server) -> None:
    found = server.wait("ready", 1)
    assert found["fast_draft"]["ok"]
    assert {"fetching", "loading", "packing", "warming", "ready"} <= found["phase_seconds"].keys()
    assert found["acceptance"]["drafts"] > 2, "both warm-up completions drafted"


def test_acceptance_under_the_floor_falls_back_to_the_stock_head(server: Server) -> None:
    """Drafts until every piece of 200 was under the floor for a second; then vLLM comes again, without the plugin's head."""
    with httpx.Client(trust_env=False, timeout=120, headers=server.headers) as http:
        while (phase := server.status()["phase"]) == "ready":
            body = {"model": "tiny", "prompt": harness.PROMPTS[:4], "max_tokens": 128, "ignore_eos": True}
            try:
                http.post(f"{server.api}/v1/completions", json=body)
            except httpx.TransportError:
                break  # it was being stopped
    assert phase in ("ready", "draining", "loading")
    found = server.wait("degraded", 2)
    assert found["ready"]
    assert found["fast_draft"]["fell_back"]
    assert found["engine"]["exits"]["fallback"] == 1
    assert "acceptance stayed under 1.0" in found["engine"]["last_exit"]
    metrics = text_string_to_metric_families(httpx.get(f"{server.exporter}/metrics", trust_env=False, timeout=30).text)
    values = {(s.name, s.labels.get("phase")): s.value for family in metrics for s in family.samples}
    assert values["radiance_fallback_active", None] == 1
    assert values["radiance_launcher_phase", "degraded"] == 1


def test_a_killed_engine_core_is_started_again_with_the_stock_head(server: Server) -> None:
    """The process that computes dies, not the one that answers: vLLM's API process ends itself then."""
    before = server.status()["engine"]["pid"]
    [core] = [
        each for each in psutil.Process(before).children(recursive=True) if "EngineCore" in " ".join(each.cmdline())
    ]
    core.kill()
    found = server.wait("degraded", 3)
    assert found["engine"]["exits"]["died"] == 1
    assert found["engine"]["pid"] != before


def test_an_engine_core_that_hangs_with_a_request_is_seen_and_started_again(server: Server) -> None:
    """Stopped, not ended: /health still answers 200, the request is counted as running, and no token comes."""
    with httpx.Client(trust_env=False, timeout=300) as http:
        tokens = server.stream(http)
        while not next(tokens):
            pass
        server.core().suspend()
        with pytest.raises((httpx.TransportError, AssertionError)):  # cut off, or ended without a finish reason
            list(tokens)
    found = server.wait("degraded", 4)
    assert found["engine"]["exits"]["wedged"] == 1
    assert "no token came for 30 s" in found["engine"]["last_exit"]


def test_a_stream_that_runs_when_sigterm_comes_loses_no_token(server: Server) -> None:
    """Also: not ready while it drains, exit code 0, and nothing is left."""
    until(server.ready, "it serves", harness.START_LIMIT)
    with httpx.Client(trust_env=False, timeout=300) as http:
        undisturbed = [token for tokens in server.stream(http) for token in tokens]
        assert len(undisturbed) == STREAMED
        begun: list[int] = []
        drained = []
        for tokens in server.stream(http):
            begun += tokens
            if not drained and len(begun) >= 8:
                server.process.send_signal(signal.SIGTERM)
                until(lambda: server.status()["phase"] == "draining", "it drains")
                assert httpx.get(f"{server.exporter}/readyz", trust_env=False, timeout=30).status_code == 503
                drained.append(len(begun))
    assert drained[0] < STREAMED // 2, "the signal came early enough"
    assert begun == undisturbed
    assert server.process.wait(120) == 0, server.log.read_text()[-4000:]
    assert processes.marked(server.mark) == []


def test_every_line_it_printed_was_json_of_one_form_without_a_secret(server: Server) -> None:
    """What launcher, vLLM and its HTTP server wrote over four lives."""
    text = server.log.read_text()
    assert KEY not in text
    assert TOKEN not in text
    lines = [json.loads(line) for line in text.splitlines()]
    assert len(lines) > 100
    for line in lines:
        assert {"timestamp", "level", "logger", "process", "message"} <= line.keys(), line
    loggers = {line["logger"].split(".")[0] for line in lines}
    assert {"radiance", "vllm", "uvicorn"} <= loggers
    assert not [line for line in lines if "GET /health" in line["message"] and " 200" in line["message"]]


def test_nothing_of_vllm_outlives_a_launcher_that_was_killed(folder: Path) -> None:
    """Killed while vLLM loads, with its engine core and helper processes around."""
    with start(folder, "--grace-seconds", "5") as server:
        until(
            lambda: server.process.poll() is not None or len(processes.marked(server.mark)) > 3,
            "launcher, guard, vLLM, engine core",
            harness.START_LIMIT,
        )
        assert server.process.poll() is None, server.log.read_text()[-4000:]
        server.process.kill()
        server.process.wait()
        until(lambda: processes.marked(server.mark) == [], "no process is left", 60)
