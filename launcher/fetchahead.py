"""What `serve` does before vLLM: fetch, so that a refusal has an exit code and a wait has lines in the log.

The fetch is a process of its own: the hub's client downloads in threads that cannot be stopped, and a stop must not wait for 50 GB.

    python -m launcher.fetchahead      the profile comes as one line of JSON; when standard input ends, so does the process

so that it ends with the launcher, however that ended.
"""

from __future__ import annotations

import os
import queue
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise

from launcher import errors, fetch
from launcher.errors import LauncherError, ModelMissing
from launcher.fetch import Say
from launcher.plan import ServePlan
from launcher.schema import Profile

#: in front of the last line of a fetch that failed
FAILED = "radiance-fetch-failed: "
TRUE = ("1", "true", "yes", "on")


def run(plan: ServePlan, environ: Mapping[str, str], say: Say, stopped: Callable[[], bool]) -> bool:
    """Everything the plan needs is in the cache then. False when `stopped` turned true. Raises a LauncherError; where
    the hub may not be asked (HF_HUB_OFFLINE), ModelMissing unless everything is there."""
    profile = plan.settled.profile
    if not plan.repositories or _dummy(plan.argv) or _true(environ, "VLLM_USE_MODELSCOPE"):
        return True
    if offline(environ):
        fetch.check(profile)
        return True
    child = subprocess.Popen(
        [sys.executable, "-P", "-m", "launcher.fetchahead"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=dict(environ),
    )
    assert child.stdin is not None
    try:
        child.stdin.write(profile.model_dump_json(exclude_unset=True) + "\n")
        child.stdin.flush()
        problem = _follow(child, say, stopped)
        if problem is None:
            return False
        if child.returncode:
            raise _named(child.returncode)(problem or f"the fetch ended with {child.returncode}")
        return True
    finally:
        if child.poll() is None:
            child.kill()
        child.wait()
        child.stdin.close()


def offline(environ: Mapping[str, str]) -> bool:
    """May the hub not be asked?"""
    return _true(environ, "HF_HUB_OFFLINE")


def _dummy(argv: Sequence[str]) -> bool:
    """Random weights: only the configuration is needed, and vLLM fetches that."""
    return "--load-format=dummy" in argv or ("--load-format", "dummy") in pairwise(argv)


def _true(environ: Mapping[str, str], name: str) -> bool:
    return environ.get(name, "").lower() in TRUE


def _follow(child: subprocess.Popen[str], say: Say, stopped: Callable[[], bool]) -> str | None:
    """Say what it says until it ends; what it failed with, empty if it did not. None: stopped."""
    lines: queue.SimpleQueue[str | None] = queue.SimpleQueue()

    def read() -> None:
        assert child.stdout is not None
        for line in child.stdout:
            lines.put(line.rstrip())
        lines.put(None)

    threading.Thread(target=read, name="fetch", daemon=True).start()
    problem = ""
    while not stopped():
        try:
            line = lines.get(timeout=0.1)
        except queue.Empty:
            continue
        if line is None:
            child.wait()
            return problem
        if line.startswith(FAILED):
            problem = line.removeprefix(FAILED)
        else:
            say(line)
    return None


def _named(code: int) -> type[LauncherError]:
    """The error that has this exit code, as the child had it."""
    kinds = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, LauncherError)]
    return next((kind for kind in kinds if kind.exit_code == code and kind is not errors.UnknownProfile), ModelMissing)


def main() -> int:
    profile = Profile.model_validate_json(sys.stdin.readline())
    threading.Thread(target=_end_with_input, daemon=True).start()
    try:
        fetch.fetch(profile, lambda line: print(line, flush=True))
    except LauncherError as error:
        print(FAILED + " ".join(str(error).splitlines()), flush=True)
        return error.exit_code
    return 0


def _end_with_input() -> None:
    sys.stdin.read()
    os._exit(1)


if __name__ == "__main__":
    sys.exit(main())
