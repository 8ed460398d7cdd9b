"""Reads vLLM's /metrics once a second on a thread of its own, so that a vLLM that hangs never makes ours slow.

What comes of it is engine.scrape: acceptance summed over the lives of vLLM, whether vLLM is wedged, and (--passthrough) all
of its families. /metrics shows the last reading and its time; /status may ask for a new one and wait for it.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import httpx

from launcher.acceptance import PREFIX, Keeper, Sample, Stall, from_samples
from launcher.engine import Engine, Scrape
from launcher.exporter import parse
from launcher.states import ENDING

log = logging.getLogger("radiance")
Samples = list[Sample]

INTERVAL = 1.0
TIMEOUT = 2.0
#: an answer larger than this is not vLLM's
LIMIT_BYTES = 32 * 2**20
RUNNING = "vllm:num_requests_running"
#: each engine step moves one of them; the second is a histogram, its count is the number of steps with tokens
PROGRESS = ("vllm:generation_tokens_total", "vllm:iteration_tokens_total_count", "vllm:prompt_tokens_total")
NEEDED = (PREFIX, RUNNING, "vllm:generation_tokens", "vllm:iteration_tokens_total", "vllm:prompt_tokens")


class Scraper(threading.Thread):
    def __init__(self, engine: Engine, interval: float = INTERVAL) -> None:
        super().__init__(name="scraper", daemon=True)
        self._engine = engine
        self._interval = interval
        self._keeper = Keeper(engine.plan.depth or 0)
        self._stalls: dict[str, Stall] = {}
        self._wake = threading.Event()
        self._begun = self._done = 0
        self._news = threading.Condition()
        self._end = False
        self._failing = ""
        # NOTE: trust_env=False, else a proxy variable of the environment would catch calls to our own loopback.
        self._http = httpx.Client(
            base_url=engine.url,
            trust_env=False,
            timeout=TIMEOUT,
            limits=httpx.Limits(max_keepalive_connections=0),  # a restarted vLLM knows nothing of an old connection
        )
        engine.scrape = Scrape(acceptance=self._keeper.total)

    def run(self) -> None:
        while not self._end:
            self.once()
            self._wake.wait(self._interval)
            self._wake.clear()
        self._http.close()

    def stop(self) -> None:
        self._end = True
        self._wake.set()

    def fresh(self, wait: float) -> None:
        """Return after a reading that began later than this call, or after `wait` seconds."""
        with self._news:
            wanted = self._begun + 1
            self._wake.set()
            self._news.wait_for(lambda: self._done >= wanted, wait)

    def once(self) -> None:
        """One reading into engine.scrape. Never raises: a failure is a figure too, and is logged when it is new."""
        with self._news:
            self._begun += 1
            number = self._begun
        begin, life = time.monotonic(), self._engine.life
        try:
            # vLLM opens its port when it is ready; before that, and on a headless node, there is nobody to ask
            if self._engine.up and self._engine.plan.leader is None:
                families = parse(self._get(begin), None if self._engine.plan.options.passthrough else NEEDED)
                if life == self._engine.life:
                    self._engine.scrape = self._judge(families, life, time.monotonic() - begin)
            else:
                self._engine.scrape = replace(
                    self._engine.scrape, success=False, seconds=0.0, families=(), wedged=False
                )
            self._failing = ""
        except Exception as error:  # whatever vLLM answered, the next reading must come
            self._engine.scrape = replace(
                self._engine.scrape, success=False, seconds=time.monotonic() - begin, families=()
            )
            text = f"{type(error).__name__}: {error}"
            if text != self._failing and self._engine.phase not in ENDING:
                log.warning("vLLM's /metrics cannot be read: %s", text)
                self._failing = text
        with self._news:
            self._done = number
            self._news.notify_all()

    def _get(self, begin: float) -> str:
        """The whole text in TIMEOUT seconds: httpx's own limit is for each piece of an answer."""
        parts, size = [], 0
        with self._http.stream("GET", "/metrics") as answer:
            answer.raise_for_status()
            for part in answer.iter_bytes():
                parts.append(part)
                size += len(part)
                if size > LIMIT_BYTES or time.monotonic() - begin > TIMEOUT:
                    raise ValueError(f"{size} bytes in {time.monotonic() - begin:.1f} s and no end")
        return b"".join(parts).decode()

    def _judge(self, families: list[Any], life: int, seconds: float) -> Scrape:
        samples: Samples = [(s.name, s.labels, s.value) for family in families for s in family.samples]
        found = from_samples(samples)
        if found is not None:
            self._keeper.see(found, life)
        wedged = [name for name in _engines(samples) if self._stalled(name, life, samples)]
        if wedged and not self._engine.scrape.wedged:
            log.warning("vLLM has running requests and makes no tokens (engine %s): wedged?", ", ".join(wedged))
        return Scrape(
            success=True,
            seconds=seconds,
            at=time.time(),
            spec=found is not None,
            acceptance=self._keeper.total,
            wedged=bool(wedged),
            life=life,
            families=tuple(families) if self._engine.plan.options.passthrough else (),
        )

    def _stalled(self, name: str, life: int, samples: Samples) -> bool:
        """Each data-parallel engine by itself: one that hangs must not hide behind another that works."""
        stall = self._stalls.setdefault(name, Stall(self._engine.plan.options.wedge_seconds))
        running, progress = _total(samples, (RUNNING,), name), _total(samples, PROGRESS, name)
        return stall.see(time.monotonic(), life, running, progress)


@contextmanager
def scraping(engine: Engine) -> Iterator[Scraper]:
    scraper = Scraper(engine)
    scraper.start()
    try:
        yield scraper
    finally:
        scraper.stop()


def _engines(samples: Samples) -> list[str]:
    return sorted({labels.get("engine", "") for name, labels, _ in samples if name == RUNNING})


def _total(samples: Samples, names: tuple[str, ...], engine: str) -> float:
    return sum(value for name, labels, value in samples if name in names and labels.get("engine", "") == engine)
