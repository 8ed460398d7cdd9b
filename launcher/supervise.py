"""Gets ready what a ServePlan needs on this machine, and hands over to lives.py.

    check and prepare -> private state folder -> vLLM, once or again -> clean stop, or an error with its exit code

The exporter is up before the first of these steps and down after the last, so that a probe can always tell "loading" from
"dead".
"""

from __future__ import annotations

import logging
import os
import shutil
import socket
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from launcher import arguments, cachedirs, fetchahead, guard, logs, secrets, smollm2
from launcher.engine import Engine
from launcher.errors import EngineMissing, LauncherError, ModelMissing, SettingsConflict
from launcher.exporter import versions
from launcher.lives import Lives
from launcher.plan import ServePlan
from launcher.signals import Signals
from launcher.states import Phase

log = logging.getLogger("radiance")


def serve(engine: Engine, environ: Mapping[str, str], signals: Signals) -> None:
    """Run to the end. Returns after a clean stop on request; raises the LauncherError that says what else happened."""
    try:
        _serve(engine, environ, signals)
    except smollm2.Stopped:
        log.info("stopped before vLLM was started")
    except LauncherError:
        engine.enter(Phase.FAILED)
        raise


def _serve(engine: Engine, environ: Mapping[str, str], signals: Signals) -> None:
    plan = engine.plan
    executable = find_vllm(plan, environ)
    env = plan.environment(environ)
    cachedirs.check(env)
    if warning := secrets.warning(env, versions()["vllm"]):
        log.warning("%s", warning)
    _prepare(plan, signals)
    if not fetchahead.run(plan, env, log.info, lambda: not signals.empty()):
        raise smollm2.Stopped
    if plan.leader is None:
        _free(plan.options.host, plan.options.port, "--port")
    if not signals.empty():
        raise smollm2.Stopped
    with _state_folder(plan) as folder:
        engine.state_dir = folder
        env["RADIANCE_STATE_DIR"] = str(folder)
        env |= logs.environment(plan.options.log_format, env, arguments.names(plan.argv), folder)
        log.info("starting %s", " ".join(plan.argv[:3]))
        Lives(engine, [executable, *plan.argv[1:]], env, signals, secrets.Redactor(environ)).run()


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
