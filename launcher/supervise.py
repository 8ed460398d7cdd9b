"""Runs a ServePlan: the only part of the launcher with side effects on processes.

    prepare model -> private state folder -> guard -> vllm serve -> (probe says ready) -> ... -> stop -> exit code

The exporter is up before the first of these steps and down after the last, so that a probe can always tell "loading" from
"dead". One loop waits for signals, the child's end, the budget and the probe's refusal; every way out passes `_end`.
An end of vLLM that nobody asked for is an error whatever its code: a dead engine must never look like a clean stop.
"""

from __future__ import annotations

import logging
import os
import queue
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType

from launcher import guard, smollm2
from launcher.engine import Engine, Phase
from launcher.errors import (
    EngineDied,
    EngineMissing,
    HeadRequired,
    ModelMissing,
    SettingsConflict,
    StartupSpent,
    StopForced,
)
from launcher.plan import ServePlan
from launcher.probe import Probe

log = logging.getLogger("radiance")
Signals = queue.SimpleQueue[int]


def serve(engine: Engine, environ: Mapping[str, str]) -> None:
    """Run to the end. Returns after a clean stop on request; raises the LauncherError that says what else happened."""
    with _signals() as signals:
        plan = engine.plan
        try:
            executable = find_vllm(plan, environ)
            _prepare(plan, signals)
            _free(plan.options.host, plan.options.port, "--port")
        except smollm2.Stopped:
            return
        with _state_folder(plan) as folder:
            engine.state_dir = folder
            env = {name: value for name, value in environ.items() if name not in plan.unset}
            env |= {**plan.env, "RADIANCE_STATE_DIR": str(folder)}
            _run(engine, [executable, *plan.argv[1:]], env, signals)


def find_vllm(plan: ServePlan, environ: Mapping[str, str]) -> str:
    """The vllm of this Python environment before any on PATH: only there is the plugin certain to be installed."""
    name = plan.argv[0]
    beside = Path(sys.executable).parent / name
    found = (
        str(beside)
        if os.sep not in name and os.access(beside, os.X_OK)
        else shutil.which(name, path=environ.get("PATH"))
    )
    if not found:
        raise EngineMissing(
            f"no executable {name!r} beside {sys.executable} or on PATH; install vLLM there or name it with --vllm"
        )
    return found


def _prepare(plan: ServePlan, signals: Signals) -> None:
    if plan.draft_vocab and not os.access(plan.draft_vocab, os.R_OK):
        raise SettingsConflict(
            f"RADIANCE_DRAFT_VOCAB={plan.draft_vocab} cannot be read; put the file there or unset it"
        )
    for folder in plan.model_folders:
        if plan.embedded and folder == plan.model_folders[0]:
            smollm2.prepare(folder, log.info, lambda: not signals.empty())
        elif not (folder / "config.json").is_file():
            what = "has no config.json" if folder.is_dir() else "does not exist"
            raise ModelMissing(
                f"profile {plan.profile!r}: model folder {folder} {what}; put the checkpoint there or change model.path"
            )


def _free(host: str, port: int, option: str) -> None:
    """Somebody else's server on the port would answer our health checks."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            raise SettingsConflict(
                f"cannot listen on {host}:{port}: {error.strerror}; choose another with {option}"
            ) from error


@contextmanager
def _state_folder(plan: ServePlan) -> Iterator[Path]:
    """mkdtemp makes it 0700; a name nobody can guess or prepare, unlike a fixed one in /tmp."""
    try:
        folder = Path(tempfile.mkdtemp(prefix=guard.STATE_PREFIX, dir=plan.state_parent))
    except OSError as error:
        raise SettingsConflict(
            f"cannot make the state folder: {error}; set RADIANCE_STATE_DIR or TMPDIR to a writable folder"
        ) from error
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def _signals() -> Iterator[Signals]:
    """SIGTERM and SIGINT go into a queue; SimpleQueue.put is safe inside a signal handler."""
    received: Signals = queue.SimpleQueue()

    def note(number: int, _: FrameType | None) -> None:
        received.put(number)

    before = {number: signal.signal(number, note) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield received
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _run(engine: Engine, argv: list[str], env: dict[str, str], signals: Signals) -> None:
    grace = engine.plan.options.grace_seconds
    engine.begin()
    engine.enter(Phase.STARTING)
    log.info("starting %s", " ".join(engine.plan.argv[:3]))
    child = subprocess.Popen(
        [sys.executable, "-P", guard.__file__, str(grace), *argv],
        env=env,
        stdin=subprocess.PIPE,
        start_new_session=True,
    )
    engine.pid = child.pid
    probe = Probe(engine, env)
    probe.start()
    try:
        _watch(engine, child, signals)
    finally:
        probe.stop()
        _reap(engine, child)


def _watch(engine: Engine, child: subprocess.Popen[bytes], signals: Signals) -> None:
    """Until something ends the run: returns on a clean stop, raises otherwise. `_reap` cleans up after all of them."""
    plan = engine.plan
    deadline = time.monotonic() + plan.startup_budget_seconds
    while True:
        number = _wait(signals, 0.2)
        if number is not None:
            log.info("%s: stopping vLLM", signal.Signals(number).name)
            _stop(engine, child, plan.options.grace_seconds, signals)
            return
        if _ended(child):
            raise EngineDied(
                f"vLLM ended by itself in phase {engine.phase} with {_code(child)}; its own log above says why"
            )
        if engine.refused:
            _stop(engine, child, plan.options.grace_seconds, signals, force_quietly=True)
            raise HeadRequired(
                f"profile {plan.profile!r} has require: fail and the 2-bit draft head is not active: {engine.refused}"
            )
        if engine.phase is not Phase.READY and time.monotonic() > deadline:
            phase = engine.phase
            _stop(engine, child, min(plan.options.grace_seconds, 5.0), signals, force_quietly=True)
            raise StartupSpent(
                f"vLLM was not ready after {plan.startup_budget_seconds} s (startup_budget_seconds); it reached phase {phase}"
            )


def _stop(
    engine: Engine, child: subprocess.Popen[bytes], grace: float, signals: Signals, force_quietly: bool = False
) -> None:
    """SIGTERM, wait for the grace; a second signal cuts it short. Raises StopForced when vLLM had to be killed."""
    engine.enter(Phase.STOPPING)
    child.send_signal(signal.SIGTERM)
    deadline = time.monotonic() + grace
    why = f"vLLM did not end within {grace:.0f} s of SIGTERM"
    while time.monotonic() < deadline:
        if _ended(child):
            log.info("vLLM ended with %s", _code(child))
            return
        if (number := _wait(signals, 0.1)) is not None:
            why = f"a second signal came ({signal.Signals(number).name})"
            break
    if not force_quietly:
        raise StopForced(f"{why}; killed it and its workers")


def _wait(signals: Signals, seconds: float) -> int | None:
    try:
        return signals.get(timeout=seconds)
    except queue.Empty:
        return None


def _ended(child: subprocess.Popen[bytes]) -> bool:
    """Without reaping: the group's number stays ours until `_reap` has killed what is left of the group."""
    return os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


def _code(child: subprocess.Popen[bytes]) -> str:
    result = os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    code = 0 if result is None else result.si_status
    return (
        f"code {code} (killed by {signal.Signals(code - 128).name})"
        if code - 128 in set(signal.Signals)
        else f"code {code}"
    )


def _reap(engine: Engine, child: subprocess.Popen[bytes]) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(child.pid, signal.SIGKILL)
    code = child.wait()
    if child.stdin:
        child.stdin.close()
    engine.up = False
    engine.exit_code = code if code >= 0 else 128 - code
    engine.enter(Phase.STOPPED)
