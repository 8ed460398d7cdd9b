"""Writes this worker's Snapshot to RADIANCE_STATE_DIR once a second, from a daemon thread. Never fails a step.

The heartbeat is the writer's own time: a worker whose process is gone or stopped shows an old one. Without a state folder
(vLLM started without the launcher) nothing is written; the log lines remain.
"""

from __future__ import annotations

import atexit
import logging
import os
import threading
import time
import weakref
from collections.abc import Callable
from pathlib import Path

from radiance import __version__, status

log = logging.getLogger("vllm.radiance")

PERIOD_SECONDS = 1.0


class Telemetry:
    """One per worker process. `rank` is the global rank within engine `engine`; heads are added as they are found."""

    def __init__(self, folder: Path | None, rank: int, vllm: str, device: str, engine: int = 0) -> None:
        now = time.time()
        self.snapshot = status.Snapshot(os.getpid(), rank, now, now, __version__, vllm, device, engine)
        #: called before each write: counters that live elsewhere come into the snapshot here. Weak: an engine that is gone
        #: takes its heads, and the weights they hold, with it
        self._sources: list[tuple[status.HeadStatus, weakref.WeakMethod[Callable[[], None]]]] = []
        self.path: Path | None = None
        self._lock = threading.Lock()
        self._failed = False
        if folder is None:
            log.warning("RADIANCE_STATE_DIR is not set: draft-head metrics are not exported (the launcher sets it)")
            return
        self.path = status.path_for(folder, rank, os.getpid())
        self.flush()
        threading.Thread(target=self._run, name="radiance-telemetry", daemon=True).start()
        atexit.register(self.flush)

    def place(self, folder: Path | None, rank: int, engine: int) -> None:
        """The rank and the engine, known only now: the file gets their name."""
        if (self.snapshot.rank, self.snapshot.engine) == (rank, engine):
            return
        with self._lock:
            if self.path is not None:
                self.path.unlink(missing_ok=True)
            self.snapshot.rank, self.snapshot.engine = rank, engine
            if self.path is not None and folder is not None:
                self.path = status.path_for(folder, rank, os.getpid())

    def add(self, head: status.HeadStatus) -> None:
        self.snapshot.heads.append(head)

    def follow(self, head: status.HeadStatus, refresh: Callable[[], None]) -> None:
        """Call the bound method `refresh` before each write; when its object is gone, the head leaves the snapshot."""
        self._sources.append((head, weakref.WeakMethod(refresh)))

    def refresh(self) -> None:
        for head, source in list(self._sources):
            bring = source()
            if bring is not None:
                bring()
            elif head.state is not status.HeadState.DECLINED:  # what declined is told until the process ends
                self._sources.remove((head, source))
                self.snapshot.heads = [kept for kept in self.snapshot.heads if kept is not head]

    def problem(self, text: str) -> None:
        """No head could be looked at; logged, kept in the snapshot, written at once."""
        log.warning("Radiance declined: %s", text)
        self.snapshot.problem = text
        self.flush()

    def flush(self) -> None:
        """Write now. A folder that cannot be written is logged once and tried again next time."""
        if self.path is None:
            return
        with self._lock:
            self.snapshot.heartbeat = time.time()
            try:
                self.refresh()
                status.write(self.path, self.snapshot)
                self._failed = False
            except Exception as error:  # a full disk, or a dict that grew while it was read: next time
                if not self._failed:
                    log.warning("Radiance cannot write %s: %s", self.path, error)
                self._failed = True

    def _run(self) -> None:
        while True:
            time.sleep(PERIOD_SECONDS)
            self.flush()
