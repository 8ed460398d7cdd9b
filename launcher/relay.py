"""All that vLLM prints passes here: secrets out, one form of lines, the phases of its start noticed, the last lines kept.

A thread reads the pipe that is stdout and stderr of everything under the guard. Lines end at a newline or at the carriage
return of a progress bar; a secret cannot hide in two pieces of a read. If nobody reads the launcher's own output any more,
the pipe is still emptied: a full one would stop vLLM.
"""

from __future__ import annotations

import json
import logging
import os
import re
import threading
from collections import deque
from collections.abc import Callable
from typing import BinaryIO

from launcher import logs
from launcher.logs import Form
from launcher.states import Phase

log = logging.getLogger("radiance")

#: the part of a line that begins a phase, in all supported releases (tests/compat looks them up in their sources)
MARKS: dict[str, Phase] = {
    "Starting to load model": Phase.LOADING,
    "Model loading took": Phase.CAPTURING,
    "Capturing CUDA graphs": Phase.CAPTURING,
}
#: ours, from radiance/head.py
PACKING, PACKED = (
    "packing begins",
    re.compile(r"Radiance draft head .*(?: -> 2 bits|: DECLINED|packing failed|: WAITING)"),
)
#: the launcher asks every second; a load balancer's requests come from elsewhere and stay
OWN_POLLS = re.compile(r'127\.0\.0\.1:\d+ - \\?"GET /(?:health|metrics) HTTP/1\.\d\\?" 200')
TAIL_LINES = 60
LONGEST_LINE = 1 << 20
_ENDS = re.compile(rb"[\n\r]+")


class Marks:
    """Which phase a line begins; packing goes back to where it came from."""

    def __init__(self) -> None:
        self._outer = Phase.LOADING

    def see(self, line: str) -> Phase | None:
        for text, phase in MARKS.items():
            if text in line:
                self._outer = phase
                return phase
        if PACKING in line and "Radiance draft head" in line:
            return Phase.PACKING
        return self._outer if PACKED.search(line) else None


class Relay(threading.Thread):
    def __init__(
        self,
        source: int,
        sink: BinaryIO,
        redact: Callable[[str], str],
        form: Form,
        begun: Callable[[Phase], object],
    ) -> None:
        super().__init__(name="relay", daemon=True)
        self._source, self._sink, self._redact, self._form, self._begun = source, sink, redact, form, begun
        self._marks = Marks()
        self._pid = os.getpid()
        #: the newest lines, redacted
        self.tail: deque[str] = deque(maxlen=TAIL_LINES)

    def run(self) -> None:
        rest = b""
        while piece := os.read(self._source, 65536):
            rest += piece
            begin = 0
            for end in _ENDS.finditer(rest):
                self._line(rest[begin : end.start()], end.group())
                begin = end.end()
            rest = rest[begin:]
            if len(rest) > LONGEST_LINE:
                self._line(rest, b"")
                rest = b""
        if rest:
            self._line(rest, b"\n")

    def _line(self, raw: bytes, end: bytes) -> None:
        try:
            self._pass_on(raw, end)
        except Exception:  # one bad line must not end the reading: vLLM would stand still on a full pipe
            log.exception("a line that vLLM printed was lost")

    def _pass_on(self, raw: bytes, end: bytes) -> None:
        line = self._redact(raw.decode(errors="surrogateescape"))
        if OWN_POLLS.search(line):
            return
        if line.strip():
            self.tail.append(line)
            if (phase := self._marks.see(line)) is not None:
                self._begun(phase)
        if self._form is Form.JSON:
            if not line.strip():
                return
            line, end = line if _is_record(line) else logs.record(line.strip(), self._pid), b"\n"
        try:
            self._sink.write(line.encode(errors="surrogateescape") + end)
            self._sink.flush()
        except (OSError, ValueError):  # our reader is gone; vLLM must not notice
            pass


def _is_record(line: str) -> bool:
    if not line.startswith("{"):
        return False
    try:
        return bool({"level", "logger", "message", "timestamp"} <= json.loads(line).keys())
    except (ValueError, AttributeError):
        return False
