"""What the launcher of the leader says, on the other nodes of a model that is spread over several.

A headless node has no API to ask, and its vLLM does not notice that the leader's is gone: a minute after that one had ended, by
SIGTERM or SIGKILL, it still waited (vLLM 0.32). So its launcher reads the leader's /status: the group serves when the leader is
ready, and a vLLM that the leader started anew is a new group, which this node's has to be started anew for.
"""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass

import httpx

from launcher.engine import Engine, Verdict
from launcher.probe import Watch
from radiance.settings import Require

log = logging.getLogger("radiance")

INTERVAL_SECONDS = 1.0
#: the leader's /status may wait for its vLLM's metrics
TIMEOUT_SECONDS = 10.0


@dataclass(frozen=True)
class Word:
    """`started`: Unix time, by the leader's clock, at which it started its vLLM; None: it has not yet. Compared, not counted with."""

    ready: bool
    reason: str
    started: float | None


class Leader:
    def __init__(self, url: str) -> None:
        self.url = url
        # NOTE: trust_env=False: a proxy variable is for what leaves the cluster.
        self._http = httpx.Client(base_url=url, trust_env=False, timeout=TIMEOUT_SECONDS)

    def ask(self) -> Word | None:
        """None: nobody answers there, or somebody who is no launcher."""
        try:
            found = self._http.get("/status").raise_for_status().json()
            return Word(bool(found["ready"]), str(found["ready_reason"]), found["engine"]["started"])
        except (httpx.HTTPError, LookupError, TypeError, ValueError):
            return None


class Follower(Watch):
    """Watches one life of this node's vLLM, which joined the group of the leader's vLLM that was started at `joined`."""

    def __init__(self, engine: Engine, leader: Leader, joined: float, interval: float = INTERVAL_SECONDS) -> None:
        super().__init__(engine, interval)
        self._leader, self._joined = leader, joined

    def run(self) -> None:
        engine, heard = self._engine, time.monotonic()
        limit = engine.plan.options.wedge_seconds
        while not self._end.wait(self._interval):
            word = self._leader.ask()
            if self._end.is_set():
                return
            silent = time.monotonic() - heard
            if word is None:
                engine.up = False
                engine.leader_gone = silent > 2 * self._interval
                if silent > limit:
                    engine.lost = f"the leader's launcher at {self._leader.url} has not answered for {limit:g} s"
                continue
            heard = time.monotonic()
            engine.leader_gone = word.started != self._joined
            if engine.leader_gone:
                engine.up = False
                engine.regroup = "the leader has started its vLLM anew"
                continue
            engine.up, engine.leader_says = word.ready, word.reason
            if word.ready:
                self._see(engine.verdict())

    def _see(self, head: Verdict) -> None:
        """Ready with the leader. A node whose ranks hold no drafter (pipeline parallel) has no head to ask for."""
        if not head.settled and not self._engine.workers()[0]:
            head = Verdict(True, True, "no rank of this node holds a draft head")
        if not head.ok and head.settled and self._engine.plan.require is Require.FAIL:
            self._engine.refused = head.reason
        else:
            self._judge(head)
