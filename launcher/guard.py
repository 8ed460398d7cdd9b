"""A small process between the launcher and vLLM, so that nothing of vLLM outlives the launcher, however it dies.

    python -P launcher/guard.py GRACE_SECONDS vllm serve ...

It leads the process group that vLLM and all its workers are in, and holds the read end of a pipe whose write end only the
launcher has. Launcher gone (even by SIGKILL) -> end of file -> SIGTERM to vLLM, then SIGKILL to the group. Guard gone
-> the kernel kills vLLM (PR_SET_PDEATHSIG). SIGTERM goes to vLLM's first process only, as `docker stop` would send it: that
one knows how to end its workers in order. Exit status: vLLM's, or 128 + signal.

PDEATHSIG alone would not do: it reaches the direct child, not the workers, and it has to be set between fork and exec,
which is not safe in the launcher with its exporter threads but is here. Standard library only, imports nothing of ours.
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
from types import FrameType

PR_SET_PDEATHSIG = 1
STATE_PREFIX = "radiance-"


def die_with_parent(number: int = signal.SIGKILL) -> None:
    """Between fork and exec: the kernel sends `number` to this process when its parent's thread ends. Linux only."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, number, 0, 0, 0)


def main() -> int:
    grace, argv = float(sys.argv[1]), sys.argv[2:]
    wake_read, wake_write = os.pipe()
    for end in (wake_read, wake_write):
        os.set_blocking(end, False)
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
        if 0 in ready and not os.read(0, 4096):
            waiting.remove(0)
            stops.append(signal.SIGTERM)
            deadline = time.monotonic() + grace
        while stops:
            child.send_signal(stops.pop())
        if deadline is not None and time.monotonic() >= deadline:
            break
    if deadline is not None or code is None:
        _end_all()
        return 128 + signal.SIGKILL
    return code if code >= 0 else 128 - code


def _end_all() -> None:
    """What the launcher would have done last: remove its private state folder, kill what is left of the group, us included."""
    folder = os.environ.get("RADIANCE_STATE_DIR", "")
    if os.path.basename(folder).startswith(STATE_PREFIX):
        shutil.rmtree(folder, ignore_errors=True)
    os.killpg(0, signal.SIGKILL)


if __name__ == "__main__":
    sys.exit(main())
