"""What a worker says of itself: one small JSON file per rank, written by temp + rename. Standard library only.

The worker writes (telemetry.py), the launcher reads at scrape time (launcher/exporter.py). A file is a whole Snapshot or
it is not there: a reader never sees half of one. SCHEMA changes when a field changes its meaning or goes away.
"""

from __future__ import annotations

import json
import os
import tempfile
import time
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from pathlib import Path

from radiance.errors import StatusError

SCHEMA = 1
SUFFIX = ".radiance.json"
#: state changes kept for one head
HISTORY = 32
#: upper bounds of the draft-head latency histogram, seconds; +Inf is implied
LATENCY_BUCKETS = (20e-6, 40e-6, 60e-6, 80e-6, 100e-6, 150e-6, 200e-6, 300e-6, 500e-6, 1e-3, 2e-3, 5e-3, 20e-3, 100e-3)


#: why the stock head answered a call; counted from 0, so that a rate sees the first one. Others appear when they occur
STOCK_REASONS = (
    "rows",  # more draft rows than the 2-bit path wins at
    "shape",
    "bias",
    "capture",  # the head was not ready when a graph was captured
    "waiting",
    "empty",
    "call_failed",
    "packing_failed",
    "declined",  # in a graph: any other reason of a declined head
)


class HeadState(StrEnum):
    OFF = "off"
    WAITING = "waiting"
    ACTIVE = "active"
    SHADOW = "shadow"
    DECLINED = "declined"


class Phase(StrEnum):
    """When something happened, in the life of a vLLM worker."""

    LOAD = "load"
    PROFILE = "profile"
    CAPTURE = "capture"
    SERVING = "serving"


@dataclass
class Transition:
    """One change of a head's state. `at` is Unix time in seconds."""

    state: HeadState
    at: float
    reason: str = ""
    phase: Phase = Phase.LOAD


@dataclass
class Latency:
    """Histogram of draft-head calls: counts[i] calls took at most buckets[i] (not cumulative), counts[-1] is +Inf."""

    buckets: list[float] = field(default_factory=lambda: list(LATENCY_BUCKETS))
    counts: list[int] = field(default_factory=lambda: [0] * (len(LATENCY_BUCKETS) + 1))
    sum_seconds: float = 0.0
    #: "host" = host clock around an eager call; "device" = device clock
    clock: str = "host"


@dataclass
class HeadStatus:
    """One draft head of one rank. Bytes are bytes, times are seconds, counters only grow."""

    name: str
    state: HeadState
    reason: str = ""
    since: float = 0.0
    #: latest transitions, oldest first
    history: list[Transition] = field(default_factory=list)
    drafter: str = ""
    n: int = 0
    k: int = 0
    rerank: int = 0
    packed_bytes: int = 0
    peak_bytes: int = 0
    quantise_seconds: float = 0.0
    #: a quantisation that had to wait for the first call: how often, when last (Unix time), in which phase
    lazy_fired: int = 0
    lazy_fired_at: float = 0.0
    lazy_phase: str = ""
    #: packed again because the engine's weights were replaced
    repacked: int = 0
    #: calls of the 2-bit path; draft rows in them; rows whose exact winner was not the coarse winner
    calls: int = 0
    rows: int = 0
    rescued_rows: int = 0
    #: calls that took the stock head, by reason
    stock_calls: dict[str, int] = field(default_factory=lambda: dict.fromkeys(STOCK_REASONS, 0))
    #: shadow or sampled checks: rows compared, rows with another argmax, rows whose exact winner was no candidate
    checked_rows: int = 0
    disagreed_rows: int = 0
    missed_rows: int = 0
    latency: Latency = field(default_factory=Latency)
    #: of the stock head beside the 2-bit path, in shadow and sampled checks
    stock_latency: Latency = field(default_factory=Latency)

    def enter(self, state: HeadState, reason: str = "", phase: Phase = Phase.LOAD) -> bool:
        """Change the state now and keep the change; False if state and reason are what they were."""
        if self.history and (self.state, self.reason) == (state, reason):
            return False
        self.state, self.reason, self.since = state, reason, time.time()
        self.history = [*self.history, Transition(state, self.since, reason, phase)][-HISTORY:]
        return True


@dataclass
class Snapshot:
    """One worker. `heartbeat` is the Unix time of the last write: an old one means a wedged or dead worker."""

    pid: int
    rank: int
    started: float
    heartbeat: float
    radiance: str
    vllm: str = ""
    device: str = ""
    #: index of the engine among data parallel ones
    engine: int = 0
    #: why no head could be looked for at all (bad setting, missing seam); empty if none
    problem: str = ""
    heads: list[HeadStatus] = field(default_factory=list)
    schema: int = SCHEMA


def path_for(folder: Path, rank: int, pid: int) -> Path:
    """The file of one worker. The pid keeps a restarted engine from mixing with its predecessor."""
    return folder / f"rank{rank}-pid{pid}{SUFFIX}"


def write(path: Path, snapshot: Snapshot) -> None:
    """Replace `path` whole (temp file in the same folder, then rename). Raises OSError."""
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=".", suffix=".tmp")
    try:
        with os.fdopen(handle, "w") as file:
            json.dump(asdict(snapshot), file)
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise


def read(path: Path) -> Snapshot:
    """Parse one file. Raises StatusError (path, what was found, what was expected)."""
    try:
        raw = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise StatusError(f"{path}: not a readable status file: {error}") from error
    if not isinstance(raw, dict) or raw.get("schema") != SCHEMA:
        found = raw.get("schema") if isinstance(raw, dict) else type(raw).__name__
        raise StatusError(f"{path}: status schema {found!r}, expected {SCHEMA}; plugin and launcher differ in version")
    try:
        return _snapshot(raw)
    except (KeyError, TypeError, ValueError) as error:
        raise StatusError(f"{path}: damaged status file: {error!r}") from error


def read_all(folder: Path) -> tuple[list[Snapshot], list[StatusError]]:
    """All workers of a folder by (rank, start), and what could not be read. A missing folder is empty."""
    snapshots: list[Snapshot] = []
    errors: list[StatusError] = []
    for path in sorted(folder.glob(f"*{SUFFIX}")):
        try:
            snapshots.append(read(path))
        except StatusError as error:
            errors.append(error)
    return sorted(snapshots, key=lambda s: (s.rank, s.started)), errors


def _snapshot(raw: dict) -> Snapshot:  # type: ignore[type-arg]
    heads = []
    for head in raw.pop("heads"):
        latency, stock = Latency(**head.pop("latency")), Latency(**head.pop("stock_latency"))
        history = [
            Transition(HeadState(t["state"]), t["at"], t["reason"], Phase(t["phase"])) for t in head.pop("history")
        ]
        head["state"] = HeadState(head["state"])
        heads.append(HeadStatus(**head, latency=latency, stock_latency=stock, history=history))
    return Snapshot(**raw, heads=heads)
