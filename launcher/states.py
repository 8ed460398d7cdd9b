"""The states of a server, and how long it was in each.

    fetching -> loading -> [packing] -> [capturing] -> warming -> ready | degraded -> draining
                   ^                                                    |                |
                   +---------------- restart --------- failed <---------+----------------+

fetching   the launcher prepares the model         warming    the first completions
loading    vLLM starts, weights are read           ready      serves as the profile asks
packing    the 2-bit copy of the head is made      degraded   serves, but with the stock head though the profile asks for ours
capturing  vLLM measures memory, compiles and captures graphs
draining   no new requests; running ones may end   failed     vLLM is dead; the launcher ends or starts it again
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection
from enum import StrEnum


class Phase(StrEnum):
    FETCHING = "fetching"
    LOADING = "loading"
    PACKING = "packing"
    CAPTURING = "capturing"
    WARMING = "warming"
    READY = "ready"
    DEGRADED = "degraded"
    DRAINING = "draining"
    FAILED = "failed"


START = (Phase.FETCHING, Phase.LOADING, Phase.PACKING, Phase.CAPTURING, Phase.WARMING)
SERVING = (Phase.READY, Phase.DEGRADED)
ENDING = (Phase.DRAINING, Phase.FAILED)


class Timeline:
    """The present phase, when each was entered (Unix time), and seconds spent in each since the last start began."""

    def __init__(self, clock: Callable[[], float] = time.monotonic, wall: Callable[[], float] = time.time) -> None:
        self._clock, self._wall = clock, wall
        self._lock = threading.Lock()
        self._phase = Phase.FETCHING
        self._entered = clock()
        self._spent = dict.fromkeys(Phase, 0.0)
        self.since: dict[Phase, float] = {Phase.FETCHING: wall()}

    @property
    def phase(self) -> Phase:
        return self._phase

    def enter(self, phase: Phase, only_from: Collection[Phase] = tuple(Phase)) -> bool:
        """False, and no change, from an ending phase to a living one: a warm-up that ends during the stop must not announce a
        ready server. Also False when the phase is that one already, or none of `only_from`."""
        with self._lock:
            backwards = self._phase in ENDING and phase not in ENDING
            if phase is self._phase or backwards or self._phase not in only_from:
                return False
            self._move(phase)
            return True

    def begin(self, first: bool) -> None:
        """vLLM is about to be started. Unless it is the first time, the durations start again."""
        with self._lock:
            self._move(Phase.LOADING)
            if not first:
                self._spent = dict.fromkeys(Phase, 0.0)

    def durations(self) -> dict[Phase, float]:
        with self._lock:
            return self._spent | {self._phase: self._spent[self._phase] + self._clock() - self._entered}

    def _move(self, phase: Phase) -> None:
        now = self._clock()
        self._spent[self._phase] += now - self._entered
        self._phase, self._entered = phase, now
        self.since[phase] = self._wall()
