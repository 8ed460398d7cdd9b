"""`radiance serve` on real processes: exit codes, signals, readiness, and that nothing is left behind."""

from __future__ import annotations

import os
import re
import signal
import socket
import stat
from collections.abc import Callable
from pathlib import Path

import pytest
from serving import Served

from tests.processes import PATIENCE, alive, until

Serve = Callable[..., Served]


def test_serves_and_stops_cleanly_on_sigterm(serve: Serve) -> None:
    served = serve()
    served.wait_ready()
    seen = served.seen()
    state = Path(seen["env"]["RADIANCE_STATE_DIR"])
    assert state.is_dir()
    assert stat.S_IMODE(seen["state_mode"]) == 0o700
    assert served.stop() == 0, served.log
    assert not state.exists()
    assert not any(alive(pid) for pid in seen["pids"])


def test_sigint_is_a_clean_stop_too(serve: Serve) -> None:
    served = serve()
    served.wait_ready()
    assert served.stop(signal.SIGINT) == 0, served.log


def test_vllm_gets_the_profile_and_the_arguments_after_the_dashes(serve: Serve, model: Path) -> None:
    served = serve("--", "--block-size", "7", rerank=48, max_model_len=512)
    seen = served.seen()
    assert seen["argv"][:2] == ["serve", str(model)]
    assert seen["argv"][-2:] == ["--block-size", "7"]
    assert seen["argv"][seen["argv"].index("--shutdown-timeout") + 1] == "20"
    assert "--max-model-len" in seen["argv"]
    assert seen["env"]["RADIANCE_FAST_DRAFT"] == "1"
    assert seen["env"]["RADIANCE_DRAFT_RERANK"] == "48"
    assert seen["env"]["VLLM_NO_USAGE_STATS"] == "1"


def test_the_probes_tell_loading_from_ready_from_stopping(serve: Serve) -> None:
    served = serve(fake="hang")
    served.wait_phase("loading")
    codes = {
        path: answer.status_code
        for path in ("/livez", "/readyz", "/startupz", "/metrics")
        if (answer := served.get(path))
    }
    assert codes == {"/livez": 200, "/readyz": 503, "/startupz": 503, "/metrics": 200}
    assert served.stop() == 0, served.log


def test_probes_and_metrics_when_ready(serve: Serve) -> None:
    served = serve()
    served.wait_ready()
    codes = {
        path: answer.status_code
        for path in ("/livez", "/readyz", "/startupz", "/nonsense")
        if (answer := served.get(path))
    }
    assert codes == {"/livez": 200, "/readyz": 200, "/startupz": 200, "/nonsense": 404}
    served.status()  # waits for a reading of vLLM, which /metrics never does
    answer = served.get("/metrics")
    assert answer is not None
    # Two warm-up completions: the fake counts 10 drafts for each, 8, 7 and 5 of them accepted at the positions.
    assert 'radiance_accepted_tokens_per_draft_bucket{le="0.0"} 4.0' in answer.text
    assert "radiance_drafts_total 20.0" in answer.text
    labels = 'engine="0",head="lm_head",rank="0",reason="fake",state="active"'
    assert f"radiance_draft_head_state{{{labels}}} 1.0" in answer.text
    assert "vllm:" not in answer.text
    assert served.status()["acceptance"]["acceptance_per_draft"] == 2.0


def test_passthrough_puts_vllms_own_metrics_on_our_port(serve: Serve) -> None:
    served = serve("--passthrough")
    served.wait_ready()
    served.status()
    answer = served.get("/metrics")
    assert answer is not None
    assert 'vllm:spec_decode_num_drafts_total{engine="0",model_name="fake"} 20.0' in answer.text
    assert "radiance_drafts_total 20.0" in answer.text


@pytest.mark.parametrize("code", [0, 1, 3])
def test_an_end_of_vllm_that_nobody_asked_for_is_70(serve: Serve, code: int) -> None:
    served = serve(fake=f"exit={code}")
    assert served.process.wait(PATIENCE) == 70
    assert f"code {code}" in served.log


def test_an_engine_that_dies_while_serving_is_70_even_with_code_0(serve: Serve) -> None:
    served = serve(fake="die=0")
    assert served.process.wait(PATIENCE) == 70
    assert "code 0" in served.log


def test_vllm_killed_from_outside_is_70_and_its_signal_is_logged(serve: Serve) -> None:
    served = serve("--max-restarts", "0")
    served.wait_ready()
    os.kill(served.seen()["pids"][0], signal.SIGKILL)
    assert served.process.wait(PATIENCE) == 70
    assert "SIGKILL" in served.log


def test_a_stubborn_vllm_and_its_workers_are_killed_after_the_grace(serve: Serve) -> None:
    served = serve("--grace-seconds", "1", fake="stubborn,worker")
    served.wait_ready()
    pids = served.seen()["pids"]
    assert len(pids) == 2
    assert served.stop() == 137
    assert "did not end within 1 s" in served.log
    until(lambda: not any(alive(pid) for pid in pids), "all processes of vLLM are gone")


def test_a_second_signal_cuts_the_grace_short(serve: Serve) -> None:
    served = serve("--grace-seconds", "100000", fake="stubborn")
    served.wait_ready()
    served.process.send_signal(signal.SIGTERM)
    served.wait_phase("draining")
    assert served.stop() == 137
    assert "another signal came (SIGTERM)" in served.log


def test_a_worker_that_outlives_its_vllm_is_killed_on_a_clean_stop(serve: Serve) -> None:
    served = serve(fake="worker")
    served.wait_ready()
    pids = served.seen()["pids"]
    assert served.stop() == 0, served.log
    until(lambda: not any(alive(pid) for pid in pids), "all processes of vLLM are gone")


@pytest.mark.parametrize("fake", ["worker", "stubborn,worker"])
def test_nothing_outlives_a_launcher_that_was_killed(serve: Serve, fake: str) -> None:
    served = serve("--grace-seconds", "1", fake=fake)
    served.wait_ready()
    pids = served.seen()["pids"]
    assert all(alive(pid) for pid in pids)
    served.process.kill()
    served.process.wait()
    until(lambda: not any(alive(pid) for pid in pids), "all processes of vLLM are gone")
    assert not Path(served.seen()["env"]["RADIANCE_STATE_DIR"]).exists()


def test_the_startup_budget_ends_a_start_that_never_gets_ready(serve: Serve) -> None:
    served = serve(fake="hang", startup_budget_seconds=1)
    assert served.process.wait(PATIENCE) == 124
    assert "startup_budget_seconds" in served.log
    assert "phase loading" in served.log


def test_a_server_that_fails_its_first_request_never_becomes_ready(serve: Serve) -> None:
    served = serve(fake="broken", startup_budget_seconds=12)
    assert served.process.wait(PATIENCE) == 124
    assert "phase warming" in served.log


def test_require_fail_ends_a_start_without_an_active_head(serve: Serve) -> None:
    served = serve(fake="head=declined", require="fail")
    assert served.process.wait(PATIENCE) == 70
    assert "declined" in served.log
    assert "require: fail" in served.log


def test_require_fail_accepts_an_active_head(serve: Serve) -> None:
    served = serve(fake="head=active", require="fail")
    served.wait_ready()


def test_require_ready_serves_but_is_never_ready(serve: Serve) -> None:
    served = serve(fake="head=declined", require="ready")
    served.wait_phase("degraded")
    answer = served.get("/readyz")
    assert answer is not None
    assert answer.status_code == 503
    assert "declined" in answer.text
    assert served.stop() == 0, served.log


def test_require_warn_is_ready_and_warns(serve: Serve) -> None:
    served = serve(fake="head=declined", require="warn")
    served.wait_ready()
    assert re.search(r"WARNING radiance\[\d+\] the 2-bit draft head is not active", served.log)


def test_with_the_head_off_nothing_is_required_of_it(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RADIANCE_FAST_DRAFT", "0")
    served = serve(require="fail")
    served.wait_ready()
    assert served.seen()["env"]["RADIANCE_FAST_DRAFT"] == "0"
    assert "RADIANCE_FAST_DRAFT=0 from the environment wins" in served.log


def test_a_missing_model_folder_is_66_before_vllm_starts(serve: Serve, tmp_path: Path) -> None:
    served = serve(model={"path": str(tmp_path / "nowhere")})
    assert served.process.wait(PATIENCE) == 66
    assert str(tmp_path / "nowhere") in served.log
    assert not (served.notes / "seen.json").exists()


@pytest.mark.parametrize("option", ["--port", "--metrics-port"])
def test_a_port_in_use_is_78_before_vllm_starts(serve: Serve, option: str) -> None:
    with socket.socket() as busy:
        busy.bind(("127.0.0.1", 0))
        busy.listen()
        served = serve(ports={option: busy.getsockname()[1]})
        assert served.process.wait(PATIENCE) == 78
    assert option in served.log
    assert not (served.notes / "seen.json").exists()


def test_a_missing_vllm_is_69(serve: Serve) -> None:
    served = serve("--vllm", "/nonexistent/vllm")
    assert served.process.wait(PATIENCE) == 69
    assert "/nonexistent/vllm" in served.log
