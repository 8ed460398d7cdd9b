"""One life of vLLM as processes: started under the guard, watched, stopped, and nothing of it left.

The guard leads a process group of its own. What leaves the group is found as a descendant: guard and launcher are
subreapers, so an orphan becomes a child of the guard, or of the launcher if the guard is gone.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress

from launcher import guard
from launcher.logs import Form
from launcher.relay import Relay
from launcher.states import Phase


class Child:
    def __init__(
        self,
        argv: Sequence[str],
        env: Mapping[str, str],
        grace: float,
        redact: Callable[[str], str],
        form: Form,
        begun: Callable[[Phase], object],
    ) -> None:
        guard.adopt_orphans()
        self._process = subprocess.Popen(
            [sys.executable, "-P", guard.__file__, str(grace), *argv],
            env=env,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        self.pid = self._process.pid
        assert self._process.stdout is not None
        self._relay = Relay(self._process.stdout.fileno(), sys.stdout.buffer, redact, form, begun)
        self._relay.start()

    @property
    def tail(self) -> list[str]:
        """The last lines of its output; complete once it has been reaped."""
        return list(self._relay.tail)

    def terminate(self) -> None:
        self._process.send_signal(signal.SIGTERM)

    def ended(self) -> bool:
        """Without reaping: the group's number stays ours until `reap` has killed what is left of the group."""
        return self._result() is not None

    def code(self) -> str:
        """For a message; only when it has ended."""
        result = self._result()
        code = 0 if result is None else result.si_status
        if code - 128 in set(signal.Signals):
            return f"code {code} (killed by {signal.Signals(code - 128).name})"
        return f"code {code}"

    def reap(self) -> int:
        """Kill what is left of it, whatever its state; the exit code, 128+n for signal n. The launcher has no other children."""
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)
        code = self._process.wait()
        guard.end_descendants()
        self._relay.join(5)
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe and not (pipe is self._process.stdout and self._relay.is_alive()):
                pipe.close()
        return code if code >= 0 else 128 - code

    def _result(self) -> os.waitid_result | None:
        return os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
