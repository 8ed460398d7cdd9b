"""What the launcher makes of a vLLM that lives more than once, hangs, prints, and is stopped: real processes, no model."""

from __future__ import annotations

import contextlib
import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from serving import Served

from launcher.lives import LONGEST_PAUSE_SECONDS, RESTART_WINDOW_SECONDS, Restarts
from tests.processes import PATIENCE, alive, until

Serve = Callable[..., Served]
FAST = ("--restart-delay-seconds", "0.05")


def lives(served: Served) -> list[dict[str, Any]]:
    path = served.notes / "lives.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def wait_life(served: Served, number: int, phase: str = "ready") -> dict[str, Any]:
    def there() -> dict[str, Any] | None:
        assert served.process.poll() is None, served.log
        found = served.status()
        return found if found["phase"] == phase and found["engine"]["restarts"] == number - 1 else None

    return dict(until(there, f"{phase} of vLLM {number}"))


def ask(served: Served) -> bool:
    """A completion, answered or not."""
    with contextlib.suppress(httpx.TransportError):
        body = {"model": "tiny", "prompt": "x"}
        httpx.post(f"http://127.0.0.1:{served.port}/v1/completions", json=body, trust_env=False)
    return True


def metric(served: Served, name: str, **labels: str) -> float:
    answer = served.get("/metrics")
    assert answer is not None
    shown = ",".join(f'{key}="{value}"' for key, value in sorted(labels.items()))
    line = f"{name}{{{shown}}} " if shown else f"{name} "
    [value] = [row.removeprefix(line) for row in answer.text.splitlines() if row.startswith(line)]
    return float(value)


def test_every_phase_of_a_start_is_seen_and_timed(serve: Serve) -> None:
    served = serve(fake="steps")
    codes = {}
    for step, phase in [
        ("loading", "loading"),
        ("packing", "packing"),
        ("capturing", "capturing"),
        ("opening", "ready"),
    ]:
        until(lambda: served.notes.joinpath("seen.json").exists(), "vLLM starts")
        (served.notes / f"{step}.go").touch()
        served.wait_phase(phase)
        codes[phase] = [
            answer.status_code for path in ("/livez", "/startupz", "/readyz") if (answer := served.get(path))
        ]
    assert codes == {"loading": [200, 503, 503], "packing": [200, 503, 503], "capturing": [200, 503, 503],
                     "ready": [200, 200, 200]}  # fmt: skip
    spent = served.status()["phase_seconds"]
    assert {"fetching", "loading", "packing", "capturing", "warming", "ready"} <= spent.keys()
    assert metric(served, "radiance_startup_phase_duration_seconds", phase="packing") == pytest.approx(
        spent["packing"], abs=0.001
    )
    assert metric(served, "radiance_launcher_phase", phase="ready") == 1


def test_a_slow_start_is_waited_for(serve: Serve) -> None:
    served = serve(fake="slow=1.5")
    served.wait_ready()


def test_ready_comes_after_a_greedy_and_a_sampled_completion(serve: Serve) -> None:
    served = serve()
    served.wait_ready()
    asked = [json.loads(line) for line in (served.notes / "requests.jsonl").read_text().splitlines()]
    assert [request["temperature"] for request in asked] == [0, 0.8]
    assert "no draft" not in served.log


def test_a_warm_up_without_drafts_is_said(serve: Serve) -> None:
    served = serve(fake="drafts=0")
    served.wait_ready()
    assert "vLLM counted no draft" in served.log


def test_without_warm_up_nothing_is_asked(serve: Serve) -> None:
    served = serve("--no-warm-up")
    served.wait_ready()
    assert not (served.notes / "requests.jsonl").exists()


@pytest.mark.parametrize("code", [0, 1])
def test_a_vllm_that_dies_in_service_is_started_again(serve: Serve, code: int) -> None:
    served = serve(*FAST)
    served.wait_ready()
    assert served.status()["acceptance"]["drafts"] == 20
    (served.notes / "end").write_text(str(code))
    found = wait_life(served, 2)
    assert found["engine"]["exits"] == {"stopped": 0, "died": 1, "wedged": 0, "fallback": 0, "head_required": 0,
                                        "startup_budget": 0, "killed": 0, "regroup": 0, "leader_lost": 0}  # fmt: skip
    assert f"ended by itself in phase ready with code {code}" in found["engine"]["last_exit"]
    assert metric(served, "radiance_vllm_restarts_total") == 1
    assert metric(served, "radiance_vllm_exits_total", reason="died") == 1
    assert metric(served, "radiance_drafts_total") == 40, "counters go on: two warm-ups of two completions"
    assert len(lives(served)) == 2
    assert served.stop() == 0, served.log


def test_restarts_have_a_limit_and_then_it_is_70(serve: Serve) -> None:
    served = serve(*FAST, "--max-restarts", "2")
    served.wait_ready()
    (served.notes / "spoiled").write_text("0")
    (served.notes / "end").write_text("1")
    assert served.process.wait(PATIENCE) == 70
    assert len(lives(served)) == 3
    assert "no restart: 2 in 30 minutes are the limit" in served.log


def test_a_stop_during_the_pause_before_a_restart_is_clean(serve: Serve) -> None:
    served = serve("--restart-delay-seconds", "60")
    served.wait_ready()
    (served.notes / "end").write_text("1")
    served.wait_phase("failed")
    answers = {path: answer.status_code for path in ("/livez", "/readyz", "/startupz") if (answer := served.get(path))}
    assert answers == {"/livez": 200, "/readyz": 503, "/startupz": 200}
    assert metric(served, "radiance_vllm_exit_code") == 1
    assert served.stop() == 0, served.log
    assert len(lives(served)) == 1
    assert "stopped while vLLM was down" in served.log


@pytest.mark.parametrize("how", ["wedged", "deaf"])
def test_a_wedged_vllm_is_ended_and_started_again(serve: Serve, how: str) -> None:
    served = serve(*FAST, "--wedge-seconds", "5", "--grace-seconds", "1")
    served.wait_ready()
    flag = served.notes / how
    flag.touch()
    until(lambda: "vLLM is wedged" in served.log, "it is seen")
    flag.unlink()
    found = wait_life(served, 2)
    assert found["engine"]["exits"]["wedged"] == 1
    assert found["ready"]


def test_a_wedged_vllm_may_be_reported_only(serve: Serve) -> None:
    served = serve("--wedge-seconds", "5", "--on-wedge", "report")
    served.wait_ready()
    (served.notes / "wedged").touch()

    def answer() -> httpx.Response | None:
        found = served.get("/readyz")
        return found if found and found.status_code == 503 else None

    assert "requests are running and no token came" in until(answer, "not ready").text
    assert metric(served, "radiance_vllm_wedged") == 1
    assert served.status()["engine"]["restarts"] == 0
    (served.notes / "wedged").unlink()
    served.wait_ready()


def test_acceptance_under_the_floor_falls_back_to_the_stock_head(serve: Serve) -> None:
    served = serve("--fallback-after-seconds", "1", fake="drafts=100", expected={"acceptance_per_draft_min": 1.5})
    served.wait_ready()
    (served.notes / "low").touch()

    until(lambda: ask(served) and served.status()["fast_draft"]["fell_back"], "it falls back")
    found = wait_life(served, 2, "degraded")
    assert found["ready"], "it serves"
    assert found["fast_draft"]["ok"], "the stock head is what is asked for now"
    assert found["engine"]["exits"]["fallback"] == 1
    assert metric(served, "radiance_fallback_active") == 1
    before, after = lives(served)
    assert (before["env"]["RADIANCE_FAST_DRAFT"], after["env"]["RADIANCE_FAST_DRAFT"]) == ("1", "0")
    assert "radiance" in before["env"]["VLLM_CACHE_ROOT"]
    assert "VLLM_CACHE_ROOT" not in after["env"]
    assert before["argv"] == after["argv"]


def test_acceptance_under_the_floor_alone_changes_nothing(serve: Serve) -> None:
    served = serve(fake="drafts=1000", expected={"acceptance_per_draft_min": 2.5})
    served.wait_ready()
    assert served.status()["acceptance"]["acceptance_per_draft"] == 2.0
    assert served.status()["phase"] == "ready"


@pytest.mark.parametrize(
    ("change", "part"),
    [({}, "has no such floor"), ({"expected": {"acceptance_per_draft_min": 1}, "require": "fail"}, "require: fail"),
     ({"expected": {"acceptance_per_draft_min": 1}, "fast_draft": "disabled"}, "the draft head off")],
)  # fmt: skip
def test_a_fall_back_that_cannot_be_is_a_usage_error(serve: Serve, change: dict[str, Any], part: str) -> None:
    served = serve("--fallback-after-seconds", "5", **change)
    assert served.process.wait(PATIENCE) == 2
    assert part in served.log


def test_while_it_drains_it_is_not_ready_and_still_serves(serve: Serve) -> None:
    """The drain delay is for load balancers: they may send requests until they have seen /readyz."""
    served = serve("--drain-delay-seconds", "8")
    served.wait_ready()
    served.process.send_signal(signal.SIGTERM)
    served.wait_phase("draining")
    answer = served.get("/readyz")
    assert answer is not None
    assert answer.status_code == 503
    body = {"model": "tiny", "prompt": "late"}
    late = httpx.post(f"http://127.0.0.1:{served.port}/v1/completions", json=body, trust_env=False)
    assert late.json()["choices"][0]["text"] == "answer to late"
    assert served.process.wait(PATIENCE) == 0, served.log


def test_a_second_signal_cuts_the_drain_delay_short(serve: Serve) -> None:
    served = serve("--drain-delay-seconds", "100000")
    served.wait_ready()
    served.process.send_signal(signal.SIGTERM)
    served.wait_phase("draining")
    assert served.stop(signal.SIGINT) == 137
    assert "another signal came (SIGINT)" in served.log


def test_two_signals_at_once_are_two(serve: Serve) -> None:
    served = serve("--grace-seconds", "100000", fake="stubborn")
    served.wait_ready()
    served.process.send_signal(signal.SIGTERM)
    assert served.stop(signal.SIGINT) == 137, served.log


def test_a_stop_during_a_fall_back_is_clean(serve: Serve) -> None:
    options = ["--fallback-after-seconds", "1", "--drain-delay-seconds", "10"]
    served = serve(*options, fake="drafts=1000", expected={"acceptance_per_draft_min": 2.5})
    served.wait_ready()
    until(lambda: served.status()["phase"] == "draining" or not ask(served), "it begins to fall back")
    assert served.stop() == 0, served.log
    assert "during the fall-back" in served.log
    assert len(lives(served)) == 1


def test_a_signal_before_there_is_a_vllm_is_a_clean_stop(serve: Serve, tmp_path: Path) -> None:
    """The launcher hangs in the reading of its key when the signal comes; as process 1 it would never see one it has no handler
    for."""
    fifo = tmp_path / "key"
    os.mkfifo(fifo)
    served = serve("--api-key-file", str(fifo))

    def writer() -> int:
        try:
            return os.open(fifo, os.O_WRONLY | os.O_NONBLOCK)
        except OSError:  # nobody reads yet
            assert served.process.poll() is None, served.log
            return 0

    write = until(writer, "the launcher reads")
    served.process.send_signal(signal.SIGTERM)
    os.write(write, b"sk-123456")
    os.close(write)
    assert served.process.wait(PATIENCE) == 0, served.log
    assert lives(served) == []


def test_what_left_parent_group_and_session_ends_too(serve: Serve) -> None:
    served = serve(fake="daemon,worker")
    served.wait_ready()
    assert len(served.left()) == 5, "launcher, guard, vLLM, worker, daemon"
    assert served.stop() == 0, served.log
    assert served.left() == []


@pytest.mark.parametrize("fake", ["daemon", "stubborn,worker,daemon", "hang,daemon"])
def test_no_process_is_left_after_the_launcher_was_killed(
    serve: Serve, monkeypatch: pytest.MonkeyPatch, fake: str
) -> None:
    served = serve("--grace-seconds", "1", fake=fake)
    pids = served.seen()["pids"]
    assert all(map(alive, pids))
    served.process.kill()
    served.process.wait()
    until(lambda: served.left() == [], "no process is left")


def test_vllm_is_asked_to_end_when_the_launcher_was_killed(serve: Serve) -> None:
    """Not only killed at the end of the grace: running requests may finish."""
    served = serve("--grace-seconds", "100000")
    served.wait_ready()
    served.process.kill()
    served.process.wait()
    until(lambda: served.left() == [], "no process is left")


def test_vllm_ends_when_launcher_and_guard_were_killed(serve: Serve) -> None:
    served = serve("--grace-seconds", "100000", fake="stubborn")
    served.wait_ready()
    [vllm], guard = served.seen()["pids"], served.status()["engine"]["pid"]
    served.process.kill()
    served.process.wait()
    assert alive(vllm)
    os.kill(guard, signal.SIGKILL)
    until(lambda: not alive(vllm), "the kernel has killed vLLM")


def test_no_process_is_left_after_the_guard_was_killed(serve: Serve) -> None:
    served = serve("--max-restarts", "0", fake="stubborn,worker,daemon")
    served.wait_ready()
    os.kill(served.status()["engine"]["pid"], signal.SIGKILL)
    assert served.process.wait(PATIENCE) == 70, served.log
    assert served.left() == []


@pytest.mark.parametrize("form", ["text", "json"])
def test_no_secret_is_in_logs_arguments_or_messages(
    serve: Serve, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, form: str
) -> None:
    token, key = "hf_Secret/Token+12345", 'sk-"quoted"\\secret-67890'
    (tmp_path / "key").write_text(key + "\n")
    (tmp_path / "token").write_text(token)
    monkeypatch.setenv("HF_TOKEN_FILE", str(tmp_path / "token"))
    more = [
        "--log-format",
        form,
        "--termination-log",
        str(tmp_path / "message"),
        "--api-key-file",
        str(tmp_path / "key"),
    ]
    served = serve(*more, "--max-restarts", "0", fake="secrets")
    served.wait_ready()
    seen = served.seen()
    assert (seen["env"]["HF_TOKEN"], seen["env"]["VLLM_API_KEY"]) == (token, key)
    commands = [Path(f"/proc/{pid}/cmdline").read_bytes() for pid in (*seen["pids"], served.process.pid)]
    pages = [answer.text for path in ("/status", "/metrics") if (answer := served.get(path))]
    (served.notes / "end").write_text("1")
    assert served.process.wait(PATIENCE) == 70
    written = [served.log, *pages, (tmp_path / "message").read_text(), *map(repr, commands), str(seen["logging"])]
    for text in written:
        for secret in (token, key, json.dumps(key)[1:-1]):
            assert secret not in text
    assert served.log.count("***") >= 6
    if form == "json":
        for line in served.log.splitlines():
            assert {"timestamp", "level", "message", "logger"} <= json.loads(line).keys()


@pytest.mark.parametrize("form", ["text", "json"])
def test_vllm_is_given_the_same_form_of_logs_unless_it_has_its_own(
    serve: Serve, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, form: str
) -> None:
    monkeypatch.setenv("VLLM_LOGGING_LEVEL", "warning")
    served = serve("--log-format", form)
    config = served.seen()["logging"]
    assert ("()" in config["formatters"]["form"]) == (form == "json")
    assert config["loggers"]["vllm"]["level"] == "WARNING"
    served.stop()
    (tmp_path / "mine.json").write_text("{}")
    monkeypatch.setenv("VLLM_LOGGING_CONFIG_PATH", str(tmp_path / "mine.json"))
    (served.notes / "seen.json").unlink()
    assert serve("--log-format", form).seen()["logging"] == {}


def test_the_reason_of_a_failed_start_is_the_exit_code_and_the_termination_message(
    serve: Serve, tmp_path: Path
) -> None:
    said = "Traceback (most recent call last):\nhuggingface_hub.errors.GatedRepoError: 401 Client Error.\n"
    (tmp_path / "said").write_text(said)
    served = serve("--termination-log", str(tmp_path / "message"), fake=f"say={tmp_path}/said,exit=1")
    assert served.process.wait(PATIENCE) == 77
    message = (tmp_path / "message").read_text()
    assert message.startswith("exit 77, AccessDenied: vLLM ended by itself in phase loading with code 1")
    assert "GatedRepoError" in message


def test_every_failure_writes_its_code(serve: Serve, tmp_path: Path) -> None:
    served = serve("--termination-log", str(tmp_path / "message"), fake="hang", startup_budget_seconds=1)
    assert served.process.wait(PATIENCE) == 124
    assert (tmp_path / "message").read_text().startswith("exit 124, StartupSpent: ")
    served = serve("--termination-log", str(tmp_path / "message"), fast_draft="yes")
    assert served.process.wait(PATIENCE) == 65
    assert (tmp_path / "message").read_text().startswith("exit 65, ProfileError: ")


def test_a_cache_that_cannot_be_written_is_73_before_vllm_starts(
    serve: Serve, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("VLLM_CACHE_ROOT", str(tmp_path / "file"))
    served = serve()
    assert served.process.wait(PATIENCE) == 73
    assert lives(served) == []


def test_service_links_do_not_reach_vllm(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    links = {"VLLM_PORT": "tcp://10.0.0.7:8000", "VLLM_SERVICE_HOST": "10.0.0.7", "MASTER_PORT": "tcp://10.0.0.8:1",
             "RADIANCE_PORT": "tcp://10.0.0.9:9410", "KUBERNETES_PORT": "tcp://10.0.0.1:443"}  # fmt: skip
    for name, value in links.items():
        monkeypatch.setenv(name, value)
    served = serve()
    env = served.seen()["env"]
    assert {"VLLM_PORT", "VLLM_SERVICE_HOST", "MASTER_PORT"}.isdisjoint(env)
    assert env["KUBERNETES_PORT"]
    for name in ("VLLM_PORT", "VLLM_SERVICE_HOST", "MASTER_PORT", "RADIANCE_PORT"):
        assert name in served.log


def test_pauses_grow_and_restarts_come_back_after_the_window() -> None:
    restarts = Restarts(4, 1.0)
    assert [restarts.next(now) for now in range(5)] == [1, 4, 16, LONGEST_PAUSE_SECONDS, None]
    assert restarts.next(RESTART_WINDOW_SECONDS + 1.5) == 16, "two of them are forgotten"
    assert Restarts(0, 1.0).next(0) is None
