"""The lives of vLLM under one launcher: start, watch, stop; again after an end that nobody asked for, within limits.

One loop waits for signals, the end of vLLM, the startup budget, the probe's refusal, a wedge, and acceptance under the floor.
Every way out of a life passes `_close`. An end of vLLM that nobody asked for is an error whatever its code: a dead engine
must never look like a clean stop.

    asked to stop    not ready -> drain delay -> SIGTERM -> running requests end -> (grace over, or a second signal) SIGKILL
    died, wedged     again after a pause, if some vLLM of this launcher has been ready and restarts are left; else exit 70
    never ready      exit 124, with the phase it reached; no second try, the orchestrator decides
    floor            again with the stock head, after a drain

On a headless node (leader.py) vLLM starts once the leader's has, starts anew when that one does, and drains as long as the
leader lasts.
"""

from __future__ import annotations

import logging
import queue
import signal
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence

from launcher.acceptance import Floor
from launcher.causes import explain
from launcher.child import Child
from launcher.engine import Engine, Exit
from launcher.errors import EngineDied, EngineWedged, HeadRequired, LauncherError, LeaderLost, StartupSpent, StopForced
from launcher.leader import Membership
from launcher.options import OnWedge
from launcher.probe import Probe, Watch
from launcher.signals import Signals
from launcher.states import SERVING, START, Phase

log = logging.getLogger("radiance")

RESTART_WINDOW_SECONDS = 1800.0
LONGEST_PAUSE_SECONDS = 60.0
#: what is wedged or never started does not drain; it gets a moment to end by itself
SHORT_GRACE_SECONDS = 5.0


class Restarts:
    """How many restarts are left in the window, and the pause before the next: 1, 4, 16 ... times the first one."""

    def __init__(self, limit: int, pause: float) -> None:
        self._limit, self._pause = limit, pause
        self._times: deque[float] = deque()

    def next(self, now: float) -> float | None:
        """Seconds to wait before a restart, which is then counted; None when there are none left."""
        while self._times and now - self._times[0] > RESTART_WINDOW_SECONDS:
            self._times.popleft()
        if len(self._times) >= self._limit:
            return None
        pause: float = min(LONGEST_PAUSE_SECONDS, self._pause * 4 ** len(self._times))
        self._times.append(now)
        return pause


class Lives:
    def __init__(
        self,
        engine: Engine,
        argv: Sequence[str],
        env: Mapping[str, str],
        signals: Signals,
        redact: Callable[[str], str],
    ) -> None:
        self._engine, self._argv, self._env = engine, argv, dict(env)
        self._signals, self._redact = signals, redact
        self._options = engine.plan.options
        self._starting = True
        self._group = Membership(engine, engine.plan.leader, signals) if engine.plan.leader else None
        self._restarts = Restarts(self._options.max_restarts, self._options.restart_delay_seconds)

    def run(self) -> None:
        """Returns after a clean stop on request."""
        while True:
            try:
                if not self._live():
                    return
            except LauncherError as error:
                self._engine.enter(Phase.FAILED)
                if not (self._group.again(error) if self._group else self._pause(error)):
                    raise
                if not self._signals.empty():
                    log.info("stopped while vLLM was down")
                    return

    def _pause(self, error: LauncherError) -> bool:
        """True after the wait for a restart; False if there is none."""
        once_ready = any(phase in self._engine.since for phase in SERVING)
        if not once_ready or isinstance(error, (HeadRequired, StartupSpent, StopForced)):
            return False
        seconds = self._restarts.next(time.monotonic())
        if seconds is None:
            log.error("no restart: %d in %.0f minutes are the limit (--max-restarts)", self._options.max_restarts,
                      RESTART_WINDOW_SECONDS / 60)  # fmt: skip
            return False
        log.error("%s", error)
        log.warning("starting vLLM again in %.1f s", seconds)
        deadline = time.monotonic() + seconds
        while self._signals.empty() and time.monotonic() < deadline:
            time.sleep(0.05)
        return True

    def _live(self) -> bool:
        """One vLLM from start to end. True: start another one at once. False: stopped on request."""
        engine = self._engine
        if self._group and not self._group.join():
            log.info("stopped while there was no vLLM of the leader to join")
            return False
        engine.begin()
        child = Child(
            self._argv, self._env, self._options.grace_seconds, self._redact, self._options.log_format, self._begun
        )
        engine.pid = child.pid
        probe: Watch = self._group.watch() if self._group else Probe(engine, self._env)
        probe.start()
        try:
            reason, text = self._watch(child)
        except LauncherError as error:
            self._close(child, probe, _reason(error), str(error))
            if type(error) is EngineDied:
                raise explain(child.tail, str(error), starting=self._starting) from None
            raise
        except BaseException:
            self._close(child, probe, Exit.KILLED, "the launcher failed")
            raise
        self._close(child, probe, reason, text)
        return reason in (Exit.FALLBACK, Exit.REGROUP)

    def _begun(self, phase: Phase) -> None:
        """vLLM says that a phase of its start begins. What it says later on is no start."""
        self._engine.timeline.enter(phase, only_from=START[:-1])

    def _watch(self, child: Child) -> tuple[Exit, str]:
        """Until something ends this life: why, or the LauncherError of it. vLLM may still run then."""
        engine, plan = self._engine, self._engine.plan
        deadline = time.monotonic() + plan.startup_budget_seconds
        floor = self._floor()
        while True:
            number, phase = self._signal(0.2), engine.phase
            self._starting = phase in START
            if number is not None:
                name = signal.Signals(number).name
                log.info("%s: stopping vLLM", name)
                self._stop(child)
                return Exit.STOPPED, name
            if child.ended():
                raise EngineDied(f"vLLM ended by itself in phase {phase} with {child.code()}")
            if engine.regroup:
                log.warning("%s: starting this node's anew", engine.regroup)
                self._stop_short(child)
                return Exit.REGROUP, engine.regroup
            if engine.lost:
                self._stop_short(child)
                raise LeaderLost(f"{engine.lost}; is it up, and reachable from here?")
            if engine.refused:
                self._stop_short(child)
                raise HeadRequired(
                    f"profile {plan.profile!r} has require: fail and the 2-bit draft head is not active: {engine.refused}"
                )
            if phase in START and time.monotonic() > deadline:
                self._stop_short(child)
                raise StartupSpent(
                    f"vLLM was not ready after {plan.startup_budget_seconds} s (startup_budget_seconds); it reached phase {phase}"
                )
            if phase in SERVING and self._options.on_wedge is OnWedge.RESTART and (wedge := engine.wedge()):
                self._stop_short(child)
                raise EngineWedged(wedge)
            if floor and phase in SERVING and floor.see(time.monotonic(), engine.scrape.acceptance):
                return self._fall_back(child)

    def _floor(self) -> Floor | None:
        least, seconds = self._engine.plan.acceptance_per_draft_min, self._options.fallback_after_seconds
        return None if least is None or seconds is None or self._engine.fell_back else Floor(least, seconds)

    def _fall_back(self, child: Child) -> tuple[Exit, str]:
        text = (
            f"acceptance stayed under {self._engine.plan.acceptance_per_draft_min} tokens per draft "
            f"for {self._options.fallback_after_seconds:g} s"
        )
        log.error("%s: starting vLLM again with its stock head", text)
        if (why := self._drain(child)) and self._signal(0) is not None:
            log.info("%s during the fall-back: stopping vLLM", why)
            self._stop(child)  # that signal was the first of a stop, which has a grace of its own
            return Exit.STOPPED, text
        self._engine.fell_back = True
        for name, value in self._engine.plan.fallback_env.items():
            if value is None:
                self._env.pop(name, None)
            else:
                self._env[name] = value
        return Exit.FALLBACK, text

    def _stop(self, child: Child) -> None:
        """The end somebody asked for. Raises StopForced when vLLM has to be killed."""
        if why := self._drain(child):
            raise StopForced(f"{why}; killed vLLM and its workers")
        log.info("vLLM ended with %s", child.code() if child.ended() else "what is left of it killed")

    def _drain(self, child: Child) -> str:
        """Not ready, but serving, for the drain delay; SIGTERM; the grace. Empty when vLLM ended by itself, else why it has
        not: the time is over, or a signal came, which stays in the queue."""
        served = self._engine.phase in SERVING
        self._engine.enter(Phase.DRAINING)
        if self._group:
            return self._outlast_leader(child) if served else self._end_soon(child)
        if not (why := self._wait_end(child, self._options.drain_delay_seconds)):
            child.terminate()
            why = self._wait_end(child, self._options.grace_seconds)
        if why or child.ended():
            return why
        return f"vLLM did not end within {self._options.grace_seconds:g} s of SIGTERM"

    def _outlast_leader(self, child: Child) -> str:
        """The leader's running requests need these ranks, so they stay until it is gone; then nothing is lost by killing them."""
        patience = self._options.drain_delay_seconds + self._options.grace_seconds
        if why := self._wait_end(child, patience, lambda: self._engine.leader_gone):
            return why
        if not child.ended() and not self._engine.leader_gone:
            return f"the leader was still there after {patience:g} s; its running requests are lost"
        return self._end_soon(child)

    def _end_soon(self, child: Child) -> str:
        """Of ranks that serve nobody: they are killed after a moment, and that is no failure."""
        child.terminate()
        return self._wait_end(child, SHORT_GRACE_SECONDS)

    def _stop_short(self, child: Child) -> None:
        """For what is wedged or never started: a moment to end, then `_close` kills it."""
        self._engine.enter(Phase.DRAINING)
        child.terminate()
        self._wait_end(child, min(self._options.grace_seconds, SHORT_GRACE_SECONDS))

    def _wait_end(self, child: Child, seconds: float, enough: Callable[[], bool] = lambda: False) -> str:
        """Until the child has ended, the time is over, or it is enough; or a signal came: then text, and it stays in the queue."""
        deadline = time.monotonic() + seconds
        while not child.ended() and not enough() and (left := deadline - time.monotonic()) > 0:
            if (number := self._signal(min(0.1, left))) is not None:
                self._signals.put(number)
                return f"another signal came ({signal.Signals(number).name})"
        return ""

    def _signal(self, seconds: float) -> int | None:
        self._engine.turned = time.monotonic()
        try:
            return self._signals.get(timeout=seconds) if seconds else self._signals.get_nowait()
        except queue.Empty:
            return None

    def _close(self, child: Child, probe: Watch, reason: Exit, text: str) -> None:
        probe.stop()
        self._engine.end(reason, text, child.reap())
        probe.join(1)


def _reason(error: LauncherError) -> Exit:
    kinds = {
        EngineWedged: Exit.WEDGED,
        HeadRequired: Exit.HEAD_REQUIRED,
        LeaderLost: Exit.LEADER_LOST,
        StartupSpent: Exit.BUDGET,
        StopForced: Exit.KILLED,
    }
    return kinds.get(type(error), Exit.DIED)
