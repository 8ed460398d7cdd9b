"""What the launcher knows of its vLLM: the state that supervise.py and probe.py write and the exporter reads.

Plain attributes, each but the phase written by one thread; a reader may see two of them a moment apart, which no answer
depends on.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

from launcher.acceptance import Acceptance
from launcher.ledger import Ledger, Worker
from launcher.plan import ServePlan
from radiance.errors import StatusError
from radiance.settings import Mode, Require
from radiance.status import HeadState, Snapshot


class Phase(StrEnum):
    PREPARING = "preparing"
    STARTING = "starting"
    WARMING = "warming"
    READY = "ready"
    STOPPING = "stopping"
    STOPPED = "stopped"


ENDING = (Phase.STOPPING, Phase.STOPPED)


@dataclass(frozen=True)
class Verdict:
    """Does the draft head do what was asked? `settled` false: it may still come to it by itself."""

    ok: bool
    settled: bool
    reason: str

    @property
    def word(self) -> str:
        return "ok" if self.ok else "failed" if self.settled else "pending"


@dataclass(frozen=True)
class Scrape:
    """What the last reading of vLLM's /metrics brought; acceptance is summed over all lives of vLLM."""

    success: bool = False
    seconds: float = 0.0
    #: Unix time of the last one that went well
    at: float | None = None
    #: vLLM exports counters of drafts
    spec: bool = False
    acceptance: Acceptance = field(default_factory=Acceptance)
    wedged: bool = False
    #: all of vLLM's metric families, if they are to be passed through
    families: tuple[Any, ...] = ()


@dataclass
class Engine:
    plan: ServePlan
    phase: Phase = Phase.PREPARING
    started: float = field(default_factory=time.time)
    #: Unix time each phase began
    since: dict[Phase, float] = field(default_factory=dict)
    state_dir: Path | None = None
    pid: int | None = None
    exit_code: int | None = None
    #: the last answer of /health was 200
    up: bool = False
    #: how often vLLM was started
    life: int = 0
    scrape: Scrape = field(default_factory=Scrape)
    ledger: Ledger = field(default_factory=Ledger)
    #: the probe gave up, for this reason; supervise ends the start
    refused: str = ""
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False, compare=False)

    def enter(self, phase: Phase) -> None:
        """From STOPPING there is no way back: a warm-up that ends during the stop must not announce a ready server."""
        with self._lock:
            if self.phase not in ENDING or phase in ENDING:
                self.phase = phase
                self.since[phase] = time.time()

    def begin(self) -> None:
        """A new vLLM is about to start: its predecessor's workers count on, but they are no longer shown."""
        self.ledger.retire(self.state_dir)
        self.exit_code = None
        self.life += 1

    @property
    def restarts(self) -> int:
        return max(0, self.life - 1)

    @property
    def url(self) -> str:
        return base_url(self.plan.options.host, self.plan.options.port)

    def workers(self) -> tuple[list[Worker], list[StatusError]]:
        """The workers of the vLLM that runs now, and the status files that could not be read."""
        return self.ledger.read(self.state_dir)

    def verdict(self) -> Verdict:
        return verdict(self.plan.mode, [worker.snapshot for worker in self.workers()[0]])

    def readiness(self) -> tuple[bool, str]:
        """What /readyz answers, and why."""
        if self.phase is not Phase.READY:
            return False, f"phase is {self.phase}"
        if not self.up:
            return False, "vLLM does not answer /health"
        if self.plan.require in (Require.READY, Require.FAIL):
            head = self.verdict()
            if not head.ok:
                return False, f"the profile requires the 2-bit draft head: {head.reason}"
        return True, "ready"


def verdict(mode: Mode, snapshots: Sequence[Snapshot]) -> Verdict:
    """Judge all heads of all ranks together: one declined head is a declined server."""
    if mode is Mode.OFF:
        return Verdict(True, True, "the stock head was asked for")
    problems = [f"rank {s.rank}: {s.problem}" for s in snapshots if s.problem]
    heads = [(f"rank {s.rank} {head.name}", head) for s in snapshots for head in s.heads]
    bad = [f"{where}: {head.state}{f' ({head.reason})' if head.reason else ''}" for where, head in heads
           if head.state in (HeadState.DECLINED, HeadState.OFF)]  # fmt: skip
    if problems or bad:
        return Verdict(False, True, "; ".join(problems + bad))
    if not heads:
        return Verdict(False, False, "no worker has reported a draft head")
    waiting = [where for where, head in heads if head.state is HeadState.WAITING]
    if waiting:
        return Verdict(False, False, f"waiting for its first call: {', '.join(waiting)}")
    return Verdict(True, True, ", ".join(f"{where}: {head.state}" for where, head in heads))


def base_url(host: str, port: int) -> str:
    """Where to reach a server that listens on `host`: "all addresses" is reached over loopback."""
    host = {"0.0.0.0": "127.0.0.1", "": "127.0.0.1", "::": "::1"}.get(host, host)
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
