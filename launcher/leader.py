"""What the launcher of the leader says, on the other nodes of a model that is spread over several.

A headless node has no API to ask, and its vLLM does not notice that the leader's is gone: a minute after that one had ended, by
SIGTERM or SIGKILL, it still waited (vLLM 0.32). So its launcher reads the leader's /group: the group serves when the leader is
ready, and a vLLM that the leader started anew is a new group, which this node's has to be started anew for.
"""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass

import httpx

from launcher.engine import Engine
from launcher.errors import EngineDied, LauncherError
from launcher.probe import SETTLE_SECONDS, Watch
from launcher.signals import Signals
from launcher.states import ENDING, SERVING, START, Phase
from radiance.settings import Require

INTERVAL_SECONDS = 1.0
TIMEOUT_SECONDS = 10.0
#: so many questions in a row without an answer: nobody is there. One alone may be a slow network, and a drain depends on it
FAILURES = 3
#: between two lines that say what is waited for
REMINDER_SECONDS = 30.0
#: this node's vLLM died: so long may the leader's take to die too and be started anew
REJOIN_SECONDS = 30.0

log = logging.getLogger("radiance")


@dataclass(frozen=True)
class Word:
    """`started`: Unix time, by the leader's clock, at which it started its vLLM; None: it has not yet. Compared, not counted with."""

    phase: Phase
    ready: bool
    reason: str
    started: float | None


class Leader:
    def __init__(self, url: str) -> None:
        self.url = url
        # NOTE: trust_env=False: a proxy variable is for what leaves the cluster.
        self._http = httpx.Client(base_url=url, trust_env=False, timeout=TIMEOUT_SECONDS)

    def ask(self) -> Word | None:
        """None: nobody answers there, or somebody who is no launcher of this release."""
        try:
            found = self._http.get("/group").raise_for_status().json()
            return Word(Phase(found["phase"]), bool(found["ready"]), str(found["reason"]), found["started"])
        except (httpx.HTTPError, LookupError, TypeError, ValueError):
            return None


class Follower(Watch):
    """Watches one life of this node's vLLM, which joined the group of the leader's vLLM that was started at `joined`."""

    def __init__(self, engine: Engine, leader: Leader, joined: float, interval: float = INTERVAL_SECONDS) -> None:
        super().__init__(engine, interval)
        self._leader, self._joined = leader, joined
        self._failures, self._heard = 0, time.monotonic()
        self._served: float | None = None

    def run(self) -> None:
        while not self._end.wait(self._interval):
            word = self._leader.ask()
            if self._end.is_set():
                return
            if word is None:
                self._unanswered()
            else:
                self._failures, self._heard = 0, time.monotonic()
                self._answered(word)

    def _unanswered(self) -> None:
        engine, limit = self._engine, self._engine.plan.options.wedge_seconds
        self._failures += 1
        engine.up, engine.leader_says = False, "its launcher does not answer"
        if self._failures < FAILURES:
            return
        engine.leader_gone = True
        if time.monotonic() - self._heard > limit:
            engine.lost = f"the leader's launcher at {self._leader.url} has not answered for {limit:g} s"

    def _answered(self, word: Word) -> None:
        engine = self._engine
        engine.leader_gone = word.started != self._joined
        if engine.leader_gone:
            engine.regroup = "the leader has started its vLLM anew"
            engine.up, engine.leader_says = False, engine.regroup
            return
        engine.up, engine.leader_says = word.ready, word.reason
        if word.phase not in SERVING:
            return
        self._served = self._served or time.monotonic()
        head = engine.verdict()
        if not head.settled and time.monotonic() - self._served < SETTLE_SECONDS:
            return
        starts = engine.phase in START  # a server whose head fails later goes on with its stock head
        if starts and not head.ok and engine.plan.require is Require.FAIL:
            engine.refused = head.reason
        else:
            self._judge(head)


class Membership:
    """Which of the leader's vLLMs this node's belongs to, over all its lives."""

    def __init__(self, engine: Engine, url: str, signals: Signals) -> None:
        self._engine, self._leader, self._signals = engine, Leader(url), signals
        self._joined = 0.0

    def watch(self) -> Follower:
        return Follower(self._engine, self._leader, self._joined)

    def join(self) -> bool:
        """Wait for a vLLM of the leader that waits for its ranks: one that serves has them all, and one that this node has left
        will never have them again. False: asked to stop meanwhile. The startup budget does not run, the leader may fetch its
        model first."""
        reminder = 0.0
        while self._signals.empty():
            word = self._leader.ask()
            if word is None:
                says = "does not answer; it must have the same --metrics-port and release"
            elif word.started is None or word.phase in ENDING:
                says = "has not started its vLLM"
            elif word.phase in SERVING or word.started == self._joined:
                says = "has a vLLM whose group this node has left; it must start it anew"
            else:
                self._joined = word.started
                return self._signals.empty()
            self._engine.leader_says = f"its launcher {says}"
            if time.monotonic() >= reminder:
                log.info("waiting: the leader's launcher at %s %s", self._leader.url, says)
                reminder = time.monotonic() + REMINDER_SECONDS
            self._wait()
        return False

    def again(self, error: LauncherError) -> bool:
        """A rank cannot come back into a group. True if the leader starts a new one soon, else whoever runs us has to know."""
        once_ready = any(phase in self._engine.since for phase in SERVING)
        if not once_ready or not isinstance(error, EngineDied):
            return False
        patience = min(REJOIN_SECONDS, self._engine.plan.options.wedge_seconds)
        log.error("%s", error)
        log.warning("waiting up to %.0f s for the leader to start its vLLM anew", patience)
        deadline = time.monotonic() + patience
        while self._signals.empty() and time.monotonic() < deadline:
            word = self._leader.ask()
            if word is not None and word.started not in (None, self._joined):
                return True
            self._wait()
        return not self._signals.empty()

    def _wait(self) -> None:
        self._engine.turned = time.monotonic()
        deadline = time.monotonic() + INTERVAL_SECONDS
        while self._signals.empty() and time.monotonic() < deadline:
            time.sleep(0.05)
