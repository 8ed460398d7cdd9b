"""Processes of tests: started with their output in a file, ended by pid, counted afterwards; free ports; waiting.

No test asserts how fast something is: `until` waits for what must happen, and a wait that never ends is a failure with a
name. Every process is ended by the pid it was started with.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

#: longest wait for something that must happen, seconds
PATIENCE = 60.0
#: inherited by every descendant, so that one that left its parent and its process group is found too
MARK = "TESTS_PROCESS_MARK"


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def until(condition: Callable[[], Any], what: str, patience: float = PATIENCE) -> Any:
    """What `condition` gave when it first gave something true. Raises AssertionError with `what` after `patience` seconds."""
    deadline = time.monotonic() + patience
    while time.monotonic() < deadline:
        if found := condition():
            return found
        time.sleep(0.05)
    raise AssertionError(f"never happened: {what}")


def start(
    command: Sequence[str | os.PathLike[str]],
    log: Path,
    *,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
) -> subprocess.Popen[bytes]:
    """`command` with stdout and stderr in the file `log` and nothing to read. End it with `stop` or `kill`."""
    with log.open("wb") as out:
        return subprocess.Popen(
            command, stdout=out, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, env=env, cwd=cwd
        )


def stop(process: subprocess.Popen[Any], number: int = signal.SIGTERM, patience: float = PATIENCE) -> int:
    """Send `number`, wait, kill what does not end; the exit code (negative: the signal that ended it)."""
    if process.poll() is None:
        process.send_signal(number)
    try:
        return process.wait(patience)
    except subprocess.TimeoutExpired:
        return kill(process)


def kill(process: subprocess.Popen[Any]) -> int:
    if process.poll() is None:
        process.kill()
    return process.wait()


@contextmanager
def running(
    command: Sequence[str | os.PathLike[str]],
    log: Path,
    *,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    patience: float = PATIENCE,
) -> Iterator[subprocess.Popen[bytes]]:
    """A program for as long as the block, then SIGTERM and, after `patience` seconds, SIGKILL."""
    process = start(command, log, env=env, cwd=cwd)
    try:
        yield process
    finally:
        stop(process, patience=patience)


def alive(pid: int) -> bool:
    """A process that exists and is not a zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def mark() -> dict[str, str]:
    """An environment entry that marks a process and all that it starts; give it to `marked` to count them."""
    return {MARK: uuid.uuid4().hex}


def marked(entry: Mapping[str, str]) -> list[int]:
    """The living processes started with this `mark()`, whoever their parent is now."""
    wanted = f"{MARK}={entry[MARK]}".encode()
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if wanted in (folder / "environ").read_bytes().split(b"\0") and alive(int(folder.name)):
                found.append(int(folder.name))
        except (OSError, ValueError):  # gone meanwhile, or somebody else's
            continue
    return sorted(found)
