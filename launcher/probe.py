"""Watches vLLM over HTTP from a thread: is it up, is it warm, does its draft head do what was asked?

Ready means warm: /health is 200 before the first token, and a server can die on its first request (a missing kernel, a
cache mode the model does not support). So one short completion is made before anybody is told "ready". It also makes a lazy
draft head quantise itself, which its first call does.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Mapping

import httpx

from launcher.engine import Engine, Phase, Verdict
from radiance.settings import Mode, Require

log = logging.getLogger("radiance")

#: workers write their state every few seconds; a head that is not settled by then is reported as it is
SETTLE_SECONDS = 20.0
WARM_UP = {"prompt": "One, two, three, four, five, six, seven", "max_tokens": 16, "temperature": 0}


class Probe(threading.Thread):
    def __init__(self, engine: Engine, environ: Mapping[str, str], interval: float = 0.5) -> None:
        super().__init__(name="probe", daemon=True)
        self._engine = engine
        self._interval = interval
        self._end = threading.Event()
        key = environ.get("VLLM_API_KEY")
        # NOTE: trust_env=False, else a proxy variable of the environment would catch calls to our own loopback.
        self._http = httpx.Client(
            base_url=engine.url,
            trust_env=False,
            timeout=10.0,
            headers={"Authorization": f"Bearer {key}"} if key else {},
        )

    def stop(self) -> None:
        self._end.set()

    def run(self) -> None:
        engine = self._engine
        while not self._healthy():
            if self._end.wait(self._interval):
                return
        engine.enter(Phase.WARMING)
        while engine.plan.options.warm_up and not self._warm_up():
            if self._end.wait(max(1.0, self._interval)):
                return
        head = self._settle()
        if self._end.is_set():
            return
        if not head.ok and engine.plan.require is Require.FAIL:
            engine.refused = head.reason
            return
        if not head.ok and engine.plan.require is not Require.NONE:
            log.warning("the 2-bit draft head is not active, vLLM serves with its stock head: %s", head.reason)
        elif engine.plan.mode is not Mode.OFF:
            log.info("draft head: %s", head.reason)
        if not self._end.is_set():
            engine.enter(Phase.READY)
            log.info("ready after %.0f s: %s", time.time() - engine.started, engine.url)
        while not self._end.wait(2.0):
            self._healthy()

    def _healthy(self) -> bool:
        was = self._engine.up
        try:
            self._engine.up = self._http.get("/health").status_code == 200
        except httpx.HTTPError:
            self._engine.up = False
        if was and not self._engine.up and not self._end.is_set():
            log.warning("vLLM stopped answering /health")
        return self._engine.up

    def _warm_up(self) -> bool:
        """One completion. True when there is no use in another try."""
        try:
            model = self._http.get("/v1/models").raise_for_status().json()["data"][0]["id"]
            self._http.post("/v1/completions", json={"model": model, **WARM_UP}, timeout=120.0).raise_for_status()
        except httpx.HTTPStatusError as error:
            if error.response.status_code < 500:
                log.warning(
                    "warm-up skipped: vLLM answered %s to %s", error.response.status_code, error.request.url.path
                )
                return True
            log.warning("warm-up failed: vLLM answered %s; trying again", error.response.status_code)
            return False
        except (httpx.HTTPError, LookupError, TypeError, ValueError) as error:
            if not self._end.is_set():
                log.warning("warm-up failed: %r; trying again", error)
            return False
        return True

    def _settle(self) -> Verdict:
        deadline = time.monotonic() + SETTLE_SECONDS
        while True:
            head = self._engine.verdict()
            if head.settled or time.monotonic() > deadline or self._end.wait(self._interval):
                return head
