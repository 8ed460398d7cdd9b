"""Watches one life of vLLM over HTTP from a thread: is it up, is it warm, does its draft head do what was asked?"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Mapping

import httpx

from launcher import warm
from launcher.acceptance import PREFIX, from_samples
from launcher.engine import Engine, Verdict
from launcher.exporter import parse
from launcher.states import ENDING, Phase
from launcher.warm import Warmth
from radiance.settings import Mode, Require

log = logging.getLogger("radiance")

#: workers write their state every second; a head that is not settled by then is reported as it is
SETTLE_SECONDS = 20.0
WATCH_SECONDS = 2.0


class Watch(threading.Thread):
    """A thread that watches one life of vLLM and says whether it is ready."""

    def __init__(self, engine: Engine, interval: float) -> None:
        super().__init__(name="probe", daemon=True)
        self._engine = engine
        self._interval = interval
        self._end = threading.Event()

    def stop(self) -> None:
        """The thread sees it at its next step; one that waits for an answer cannot change the phase any more."""
        self._end.set()

    def _judge(self, head: Verdict) -> None:
        """Ready or degraded, and a line whenever that changes."""
        engine = self._engine
        short = engine.fell_back or (not head.ok and engine.plan.require is not Require.NONE)
        if self._end.is_set() or not engine.enter(Phase.DEGRADED if short else Phase.READY):
            return
        if short:
            why = "acceptance stayed under the profile's floor" if engine.fell_back else head.reason
            log.warning("the 2-bit draft head is not active, vLLM serves with its stock head: %s", why)
        elif engine.plan.mode is not Mode.OFF:
            log.info("draft head: %s", head.reason)


class Probe(Watch):
    def __init__(self, engine: Engine, environ: Mapping[str, str], interval: float = 0.5) -> None:
        super().__init__(engine, interval)
        key = environ.get("VLLM_API_KEY")
        # NOTE: trust_env=False, else a proxy variable of the environment would catch calls to our own loopback.
        self._http = httpx.Client(
            base_url=engine.url,
            trust_env=False,
            timeout=10.0,
            headers={"Authorization": f"Bearer {key}"} if key else {},
        )

    def run(self) -> None:
        engine = self._engine
        while not self._healthy():
            if self._end.wait(self._interval):
                return
        engine.enter(Phase.WARMING)
        if engine.plan.options.warm_up and not self._warm():
            return
        head = self._settle()
        if self._end.is_set():
            return
        if not head.ok and engine.plan.require is Require.FAIL:
            engine.refused = head.reason
            return
        self._judge(head)
        log.info("%s after %.0f s: %s", engine.phase, time.time() - engine.begun, engine.url)
        while not self._end.wait(min(WATCH_SECONDS, engine.plan.options.wedge_seconds / 4)):
            if self._healthy():  # of one that is gone there is no state, which says nothing of its head
                self._judge(engine.verdict())

    def _healthy(self) -> bool:
        was = self._engine.up
        try:
            good = self._http.get("/health").status_code == 200
        except httpx.HTTPError:
            good = False
        if self._end.is_set():
            return False
        self._engine.up = good
        if good:
            self._engine.answered = time.monotonic()
        elif was and self._engine.phase not in ENDING:
            log.warning("vLLM stopped answering /health")
        return good

    def _warm(self) -> bool:
        """Until it is warm or cannot be; False when the start has ended. Without a draft the draft head is not warm."""
        before = self._drafts() or 0
        while True:
            found, why = warm.up(self._http)
            if self._end.is_set():
                return False
            if found is not Warmth.COLD:
                break
            log.warning("warm-up failed: %s; trying again", why)
            if self._end.wait(max(1.0, self._interval)):
                return False
        if found is Warmth.IMPOSSIBLE:
            log.warning("warm-up skipped: %s", why)
        elif self._engine.plan.depth is not None and not self._drafted(before):
            log.warning(
                "warm-up: two completions and vLLM counted no draft; the first requests with drafts may be slow"
            )
        return True

    def _drafted(self, before: int) -> bool:
        """vLLM's counters follow an answer after a moment."""
        for _ in range(10):
            if (self._drafts() or 0) > before:
                return True
            if self._end.wait(self._interval):
                break
        return False

    def _drafts(self) -> int | None:
        try:
            families = parse(self._http.get("/metrics").raise_for_status().text, (PREFIX,))
        except (httpx.HTTPError, ValueError):
            return None
        found = from_samples((s.name, s.labels, s.value) for family in families for s in family.samples)
        return None if found is None else found.drafts

    def _settle(self) -> Verdict:
        deadline = time.monotonic() + SETTLE_SECONDS
        while True:
            head = self._engine.verdict()
            if head.settled or time.monotonic() > deadline or self._end.wait(self._interval):
                return head
