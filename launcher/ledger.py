"""The status files of all workers this launcher has had, remembered, so that sums over them never go back.

A worker's counters start from 0 with its process; the launcher's must not. So the last readable Snapshot of every worker is
kept: those of the vLLM that runs now are shown as they are, those of earlier ones (`retire`) only count. A file that is torn
at one scrape or gone at the next changes nothing but the count of errors.
"""

from __future__ import annotations

import threading
from collections import Counter
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path

from radiance import status
from radiance.errors import StatusError
from radiance.status import HeadStatus, Snapshot

#: a worker writes once a second; this long without a sign it is wedged, stopped or dead
STALE_SECONDS = 15.0
#: engine, rank, head: strings, as they become labels
HeadKey = tuple[str, str, str]


@dataclass
class Worker:
    """One worker process. `engine` is the data-parallel engine it says it is of; the next free number if another living worker of
    that rank says the same."""

    engine: int
    snapshot: Snapshot
    retired: bool = False
    #: lazy quantisations by (head, phase): the snapshot knows the phase of the last one only
    lazy: Counter[tuple[str, str]] = field(default_factory=Counter)

    @property
    def labels(self) -> tuple[str, str]:
        return str(self.engine), str(self.snapshot.rank)

    def age(self, now: float) -> float:
        return now - self.snapshot.heartbeat

    def stale(self, now: float) -> bool:
        return self.age(now) > STALE_SECONDS

    def take(self, snapshot: Snapshot) -> None:
        before = {head.name: head.lazy_fired for head in self.snapshot.heads} if self.lazy else {}
        for head in snapshot.heads:
            if (more := head.lazy_fired - before.get(head.name, 0)) > 0:
                self.lazy[head.name, head.lazy_phase] += more
        self.snapshot = snapshot


@dataclass
class Totals:
    """One head's counters over all processes that had it."""

    calls: int = 0
    rows: int = 0
    rescued_rows: int = 0
    checked_rows: int = 0
    disagreed_rows: int = 0
    missed_rows: int = 0
    repacked: int = 0
    stock_calls: Counter[str] = field(default_factory=Counter)
    lazy: Counter[str] = field(default_factory=Counter)
    #: clock -> (upper bound -> calls in that bucket alone, seconds)
    latency: dict[str, tuple[Counter[float], float]] = field(default_factory=dict)

    def add(self, head: HeadStatus) -> None:
        for name in ("calls", "rows", "rescued_rows", "checked_rows", "disagreed_rows", "missed_rows", "repacked"):
            setattr(self, name, getattr(self, name) + getattr(head, name))
        self.stock_calls.update(head.stock_calls)
        counts, seconds = self.latency.get(head.latency.clock, (Counter(), 0.0))
        counts.update(dict(zip([*head.latency.buckets, float("inf")], head.latency.counts, strict=True)))
        self.latency[head.latency.clock] = counts, seconds + head.latency.sum_seconds


class Ledger:
    """Thread-safe: /metrics, /readyz and the probe read it at the same time."""

    def __init__(self) -> None:
        self._workers: dict[tuple[int, int, float], Worker] = {}
        self._lock = threading.Lock()

    def read(self, folder: Path | None) -> tuple[list[Worker], list[StatusError]]:
        """The workers of the running vLLM by rank and engine, and the files that cannot be read now."""
        with self._lock:
            errors = self._read(folder)
            live = [worker for worker in self._workers.values() if not worker.retired]
            return sorted(live, key=lambda w: (w.snapshot.rank, w.engine)), errors

    def retire(self, folder: Path | None) -> None:
        """What is here now belongs to a vLLM that ended: read once more, then only counted."""
        with self._lock:
            self._read(folder)
            for worker in self._workers.values():
                worker.retired = True

    def totals(self) -> dict[HeadKey, Totals]:
        """Of all workers there ever were, as last read."""
        with self._lock:
            found: dict[HeadKey, Totals] = {}
            for worker in self._workers.values():
                for head in worker.snapshot.heads:
                    total = found.setdefault((*worker.labels, head.name), Totals())
                    total.add(head)
                    for (name, phase), count in worker.lazy.items():
                        if name == head.name:
                            total.lazy[phase] += count
            return found

    def _read(self, folder: Path | None) -> list[StatusError]:
        if folder is None:
            return []
        snapshots, errors = status.read_all(folder)
        for snapshot in snapshots:
            if any(len(head.latency.counts) != len(head.latency.buckets) + 1 for head in snapshot.heads):
                errors.append(StatusError(f"rank {snapshot.rank}, pid {snapshot.pid}: counts do not fit the buckets"))
                continue
            key = (snapshot.rank, snapshot.pid, snapshot.started)
            if key not in self._workers:
                taken = {w.engine for w in self._workers.values() if not w.retired and w.snapshot.rank == snapshot.rank}
                free = (number for number in count(snapshot.engine) if number not in taken)
                self._workers[key] = Worker(next(free), snapshot)
            self._workers[key].take(snapshot)
        return errors
