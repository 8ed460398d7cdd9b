"""Stop requests in a queue. Imports nothing heavy: they must be caught from the first moment of `radiance serve`, since as
process 1 of a container it would otherwise not notice one at all."""

from __future__ import annotations

import queue
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

Signals = queue.SimpleQueue[int]


@contextmanager
def received() -> Iterator[Signals]:
    """SIGTERM and SIGINT go into a queue; SimpleQueue.put is safe inside a signal handler."""
    signals: Signals = queue.SimpleQueue()

    def note(number: int, _: FrameType | None) -> None:
        signals.put(number)

    before = {number: signal.signal(number, note) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield signals
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
