"""What the launcher knows of its vLLM: the state that supervise.py and probe.py write and the exporter reads.

Plain attributes, each written by one thread (the phase by both, through Timeline); a reader may see two of them a moment
apart, which no answer depends on.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

from launcher.acceptance import Acceptance
from launcher.ledger import Ledger, Worker
from launcher.plan import ServePlan
from launcher.states import SERVING, Phase, Timeline
from radiance.errors import StatusError
from radiance.settings import Mode, Require
from radiance.status import HeadState, Snapshot


class Exit(StrEnum):
    """Why a vLLM ended: the label `reason` of radiance_vllm_exits_total."""

    STOPPED = "stopped"
    DIED = "died"
    WEDGED = "wedged"
    FALLBACK = "fallback"
    HEAD_REQUIRED = "head_required"
    BUDGET = "startup_budget"
    REGROUP = "regroup"
    LEADER_LOST = "leader_lost"
    KILLED = "killed"


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
    #: the vLLM this is about, counted from 1
    life: int = 0
    #: all of vLLM's metric families, if they are to be passed through
    families: tuple[Any, ...] = ()


@dataclass
class Engine:
    plan: ServePlan
    timeline: Timeline = field(default_factory=Timeline)
    started: float = field(default_factory=time.time)
    #: Unix time the vLLM that runs now was started
    begun: float = field(default_factory=time.time)
    state_dir: Path | None = None
    pid: int | None = None
    exit_code: int | None = None
    #: how often vLLM ended, by reason; and the last reason in words
    exits: Counter[Exit] = field(default_factory=Counter)
    last_exit: str = ""
    #: the last answer of /health was 200
    up: bool = False
    #: monotonic time of the last such answer of this vLLM
    answered: float | None = None
    #: monotonic time of the supervision's last look around; None until there is a vLLM
    turned: float | None = None
    #: how often vLLM was started
    life: int = 0
    #: acceptance stayed under the floor: from now on the stock head is served
    fell_back: bool = False
    scrape: Scrape = field(default_factory=Scrape)
    ledger: Ledger = field(default_factory=Ledger)
    #: the probe gave up, for this reason; supervise ends the start
    refused: str = ""
    #: on a headless node (leader.py): why its vLLM has to be started anew; why there is no leader any more; whether the group
    #: is gone as far as one can tell; why the leader is not ready
    regroup: str = ""
    lost: str = ""
    leader_gone: bool = False
    leader_says: str = "the leader has not been asked"

    @property
    def phase(self) -> Phase:
        return self.timeline.phase

    @property
    def since(self) -> dict[Phase, float]:
        return self.timeline.since

    @property
    def mode(self) -> Mode:
        return Mode.OFF if self.fell_back else self.plan.mode

    def enter(self, phase: Phase) -> bool:
        """False when that is no change, or when the server is ending."""
        return self.timeline.enter(phase)

    def begin(self) -> None:
        """A new vLLM is about to start: its predecessor's workers count on, but they are no longer shown."""
        self.ledger.retire(self.state_dir)
        self.timeline.begin(first=self.life == 0)
        self.exit_code, self.answered = None, None
        self.refused = self.regroup = self.lost = ""
        self.leader_gone = False
        self.begun = time.time()
        self.life += 1

    def end(self, reason: Exit, text: str, code: int) -> None:
        """The vLLM that ran has ended."""
        self.up = False
        self.exits[reason] += 1
        self.last_exit, self.exit_code = text, code

    def wedge(self) -> str:
        """Why the running vLLM is held to be wedged; empty if it is not. /health alone is no proof of life, nor is one missed
        answer of death."""
        limit = self.plan.options.wedge_seconds
        if self.scrape.wedged and self.scrape.life == self.life:
            return f"vLLM is wedged: requests are running and no token came for {limit:g} s"
        if self.phase in SERVING and self.answered is not None and time.monotonic() - self.answered > limit:
            return f"vLLM is wedged: /health has not answered for {limit:g} s"
        return ""

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
        snapshots = [worker.snapshot for worker in self.workers()[0]]
        if not snapshots and self.plan.drafter_elsewhere and self.mode is not Mode.OFF:
            return Verdict(True, True, "no rank of this node has a draft head: the drafter is on the last one")
        return verdict(self.mode, snapshots)

    def readiness(self) -> tuple[bool, str]:
        """What /readyz answers, and why."""
        follows = f"the leader {self.plan.leader}: {self.leader_says}" if self.plan.leader else ""
        if self.phase not in SERVING:
            return False, "; ".join(filter(None, [f"phase is {self.phase}", follows]))
        if not self.up:
            return False, follows or "vLLM does not answer /health"
        if wedge := self.wedge():
            return False, wedge
        if self.plan.require in (Require.READY, Require.FAIL):
            head = self.verdict()
            if not head.ok:
                return False, f"the profile requires the 2-bit draft head: {head.reason}"
        return True, str(self.phase)


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
