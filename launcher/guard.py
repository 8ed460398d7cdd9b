"""A small process between the launcher and vLLM, so that nothing of vLLM outlives the launcher, however it dies.

    python -P launcher/guard.py GRACE_SECONDS vllm serve ...

It leads the process group that vLLM and all its workers are in, and holds the read end of a pipe whose write end only the
launcher has. Launcher gone (even by SIGKILL) -> end of file -> SIGTERM to vLLM, then SIGKILL to everything. Guard gone
-> the kernel kills vLLM (PR_SET_PDEATHSIG). SIGTERM goes to vLLM's first process only, as `docker stop` would send it: that
one knows how to end its workers in order. Exit status: vLLM's, or 128 + signal.

A process that leaves the group, or whose parent dies, becomes a child of the guard (PR_SET_CHILD_SUBREAPER): it is reaped,
and killed when vLLM's first process has ended. PDEATHSIG alone would not do: it reaches the direct child, not the workers,
and it has to be set between fork and exec, which is not safe in the launcher with its threads but is here.
Imports nothing of ours.
"""

from __future__ import annotations

import ctypes
import os
import select
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterable
from contextlib import suppress
from types import FrameType

import psutil

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
STATE_PREFIX = "radiance-"


def die_with_parent(number: int = signal.SIGKILL) -> None:
    """Between fork and exec: the kernel sends `number` to this process when its parent's thread ends. Linux only."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, number, 0, 0, 0)


def adopt_orphans() -> None:
    """From now on descendants whose parent ends become children of this process. Linux only."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def end_descendants(patience: float = 10.0) -> None:
    """Kill and reap all that descends from this process, and what they fork meanwhile; give up on what cannot be killed."""
    deadline = time.monotonic() + patience
    while (found := psutil.Process().children(recursive=True)) and time.monotonic() < deadline:
        end(found)


def end(processes: Iterable[psutil.Process]) -> None:
    for process in (listed := list(processes)):
        with suppress(psutil.Error):
            process.kill()
    psutil.wait_procs(listed, timeout=1)


def main() -> int:
    grace, argv = float(sys.argv[1]), sys.argv[2:]
    adopt_orphans()
    wake_read, wake_write = os.pipe()
    for wake in (wake_read, wake_write):
        os.set_blocking(wake, False)
    signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
    stops: list[int] = []

    def note(number: int, _: FrameType | None) -> None:
        if number != signal.SIGCHLD:
            stops.append(number)

    for number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT):
        signal.signal(number, note)
    try:
        child = subprocess.Popen(argv, stdin=subprocess.DEVNULL, preexec_fn=die_with_parent)
    except OSError as error:
        print(f"radiance: cannot start {argv[0]}: {error}", file=sys.stderr)
        return 127
    waiting = [0, wake_read]
    deadline: float | None = None
    while (code := child.poll()) is None:
        ready, _, _ = select.select(
            waiting, [], [], None if deadline is None else max(0.0, deadline - time.monotonic())
        )
        if wake_read in ready:
            os.read(wake_read, 4096)
            _reap_orphans(child.pid)
        if 0 in ready and not os.read(0, 4096):
            waiting.remove(0)
            stops.append(signal.SIGTERM)
            deadline = time.monotonic() + grace
        while stops:
            child.send_signal(stops.pop())
        if deadline is not None and time.monotonic() >= deadline:
            break
    if deadline is not None:
        _clean_up()
    end_descendants()
    if deadline is not None:
        return 128 + signal.SIGKILL
    assert code is not None
    return code if code >= 0 else 128 - code


def _reap_orphans(child: int) -> None:
    """Whatever has ended and was never ours; Popen waits for its own child."""
    for process in psutil.Process().children():
        if process.pid != child:
            with suppress(psutil.Error, ChildProcessError):
                if process.status() == psutil.STATUS_ZOMBIE:
                    os.waitpid(process.pid, os.WNOHANG)


def _clean_up() -> None:
    """What the launcher would have done last: remove its private state folder."""
    folder = os.environ.get("RADIANCE_STATE_DIR", "")
    if os.path.basename(folder).startswith(STATE_PREFIX):
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())
