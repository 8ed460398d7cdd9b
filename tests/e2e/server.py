"""A `radiance serve` on a real CPU vLLM that a test talks to for as long as it likes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import psutil

from tests.e2e import harness
from tests.processes import until

#: tokens of a stream: long enough to be running when a signal comes, on any machine
STREAMED = 700


@dataclass
class Server:
    """`mark`: of the environment that all its processes have. `headers`: what its API wants to see."""

    process: Any
    log: Path
    mark: dict[str, str]
    api: str
    exporter: str
    seen: list[str] = field(default_factory=list)
    headers: dict[str, str] = field(default_factory=dict)

    def status(self) -> dict[str, Any]:
        return dict(httpx.get(f"{self.exporter}/status", trust_env=False, timeout=30).json())

    def core(self) -> psutil.Process:
        """The process that computes."""
        below = psutil.Process(self.status()["engine"]["pid"]).children(recursive=True)
        [found] = [each for each in below if "EngineCore" in " ".join(each.cmdline())]
        return found

    def ready(self) -> bool:
        assert self.process.poll() is None, self.log.read_text()[-4000:]
        try:
            return httpx.get(f"{self.exporter}/readyz", trust_env=False, timeout=30).status_code == 200
        except httpx.TransportError:
            return False

    def wait(self, phase: str, life: int) -> dict[str, Any]:
        """Until vLLM number `life` (from 1) is in `phase`; the phases on the way go into `seen`."""

        def there() -> dict[str, Any] | None:
            assert self.process.poll() is None, self.log.read_text()[-4000:]
            try:
                found = self.status()
            except httpx.TransportError:  # the launcher itself has just been started
                return None
            if not self.seen or self.seen[-1] != found["phase"]:
                self.seen.append(found["phase"])
            return found if found["phase"] == phase and found["engine"]["restarts"] == life - 1 else None

        return dict(until(there, f"{phase} of vLLM {life}", harness.START_LIMIT))

    def stream(self, http: httpx.Client, length: int = STREAMED) -> Iterator[list[int]]:
        """The token ids of a greedy completion, as they come; ends after the server said that it is complete."""
        body = {"model": "tiny", "prompt": harness.PROMPTS[0], "max_tokens": length, "temperature": 0, "stream": True}
        more = {"ignore_eos": True, "return_token_ids": True}
        with http.stream("POST", f"{self.api}/v1/completions", json=body | more, headers=self.headers) as answer:
            answer.raise_for_status()
            finished = ""
            for line in answer.iter_lines():
                if not line or line == "data: [DONE]":
                    finished += line
                    continue
                choice = json.loads(line.removeprefix("data: "))["choices"][0]
                yield choice["token_ids"] or []
                finished += choice["finish_reason"] or ""
            assert finished == "lengthdata: [DONE]"
