"""One trial: a real `radiance serve` in one mode of the draft head, a set of chats through it, and what both sides showed.

Everything a user would do, over the same commands and ports: start, wait until ready, chat, read /status, stop. Nothing is
taken from inside the server, so what a trial shows is what a deployment shows. `demo` and `compare` are made of trials.
"""

from __future__ import annotations

import hashlib
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from launcher import guard
from launcher.errors import EngineDied
from radiance.settings import Mode

HOST = "127.0.0.1"
NAMES = {Mode.OFF: "stock head", Mode.ON: "2-bit head", Mode.SHADOW: "stock head, 2-bit head in its shadow"}
Say = Callable[[str], None]


@dataclass(frozen=True)
class Work:
    """What is asked: every prompt once, greedily, `at_once` at a time."""

    prompts: tuple[str, ...]
    max_tokens: int
    at_once: int


@dataclass(frozen=True)
class Latency:
    """Mean of the calls of one kind; `clock` is host or device."""

    calls: int
    seconds: float
    clock: str


@dataclass(frozen=True)
class Trial:
    """Counts are those of the chats alone, without the warm-up."""

    mode: Mode
    texts: tuple[str, ...]
    tokens: int
    seconds: float
    seconds_to_ready: float
    drafts: int
    draft_tokens: int
    accepted: int
    head_ok: bool
    head: str
    #: of the 2-bit path, and of the stock head beside it in shadow; None: not measured there
    latency: Latency | None
    stock_latency: Latency | None
    #: draft rows compared with the stock head in shadow, with another winner, with the winner not among the candidates
    checked_rows: int
    disagreed_rows: int
    missed_rows: int

    @property
    def acceptance(self) -> float:
        """Accepted tokens of a draft."""
        return self.accepted / self.drafts if self.drafts else 0.0

    @property
    def tokens_per_second(self) -> float:
        return self.tokens / self.seconds if self.seconds else 0.0

    @property
    def output(self) -> str:
        """Equal for equal texts."""
        return hashlib.sha256("\0".join(self.texts).encode()).hexdigest()[:16]


def run(command: Sequence[str], mode: Mode, environ: Mapping[str, str], logs: Path, work: Work, say: Say) -> Trial:
    """Serve with `command` (no ports in it) in `mode`, do the work, stop. Raises EngineDied with the end of the log."""
    log = logs / f"{mode.name.lower()}.log"
    with _server(command, mode, environ, log) as (child, port, metrics_port):
        say(
            f"starting vLLM with the {NAMES[mode]}: API http://{HOST}:{port}, metrics http://{HOST}:{metrics_port}/metrics"
        )
        with httpx.Client(trust_env=False, timeout=600.0) as http:
            ready = _until_ready(http, child, metrics_port, log, say)
            before = _status(http, metrics_port)
            texts, tokens, seconds = _chat(http, port, environ.get("VLLM_API_KEY"), work, say)
            after = _status(http, metrics_port)
        _stop(child, log, say)
    drafted, head = after["acceptance"], after["fast_draft"]
    if not drafted["available"]:
        raise EngineDied(f"no acceptance to compare: {drafted['reason']}")
    earlier = before["acceptance"]
    return Trial(
        mode=mode,
        texts=tuple(texts),
        tokens=tokens,
        seconds=seconds,
        seconds_to_ready=ready,
        drafts=drafted["drafts"] - earlier.get("drafts", 0),
        draft_tokens=drafted["draft_tokens"] - earlier.get("draft_tokens", 0),
        accepted=drafted["accepted_tokens"] - earlier.get("accepted_tokens", 0),
        head_ok=head["ok"],
        head=head["reason"],
        latency=_latency(before, after, "latency"),
        stock_latency=_latency(before, after, "stock_latency"),
        checked_rows=_sum(after, "checked_rows") - _sum(before, "checked_rows"),
        disagreed_rows=_sum(after, "disagreed_rows") - _sum(before, "disagreed_rows"),
        missed_rows=_sum(after, "missed_rows") - _sum(before, "missed_rows"),
    )


def _heads(status: Mapping[str, Any]) -> list[dict[str, Any]]:
    return [head for worker in status["workers"] for head in worker["heads"]]


def _sum(status: Mapping[str, Any], key: str) -> int:
    return sum(int(head[key]) for head in _heads(status))


def _latency(before: Mapping[str, Any], after: Mapping[str, Any], key: str) -> Latency | None:
    """Between two readings, all heads of all ranks together."""

    def total(status: Mapping[str, Any]) -> tuple[int, float, str]:
        found = [head[key] for head in _heads(status)]
        calls, seconds = sum(sum(one["counts"]) for one in found), sum(one["sum_seconds"] for one in found)
        return calls, seconds, found[0]["clock"] if found else ""

    (calls, seconds, clock), (earlier, earlier_seconds, _) = total(after), total(before)
    if calls <= earlier:
        return None
    return Latency(calls - earlier, (seconds - earlier_seconds) / (calls - earlier), clock)


@contextmanager
def _server(
    command: Sequence[str], mode: Mode, environ: Mapping[str, str], log: Path
) -> Iterator[tuple[subprocess.Popen[bytes], int, int]]:
    port, metrics_port = _free_ports()
    argv = [*command, "--host", HOST, "--port", str(port), "--metrics-port", str(metrics_port)]
    env = {**environ, "RADIANCE_FAST_DRAFT": str(mode)}
    with log.open("wb") as output:
        # A trial that is killed takes its server along.
        child = subprocess.Popen(
            argv, env=env, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, preexec_fn=_die_too
        )
    try:
        yield child, port, metrics_port
    finally:
        if child.poll() is None:
            child.terminate()
            try:
                child.wait(60)
            except subprocess.TimeoutExpired:
                child.kill()
                child.wait()


def _die_too() -> None:
    guard.die_with_parent(signal.SIGTERM)


def _until_ready(http: httpx.Client, child: subprocess.Popen[bytes], metrics_port: int, log: Path, say: Say) -> float:
    begin, told = time.monotonic(), ""
    while True:
        elapsed = time.monotonic() - begin
        if child.poll() is not None:
            raise EngineDied(
                f"`radiance serve` ended with {child.returncode} before it was ready; the end of its log:\n{_tail(log)}"
            )
        try:
            status = _status(http, metrics_port)
            phase = "ready" if status["ready"] else status["phase"]
        except httpx.HTTPError:
            phase = "launching"
        line = f"{phase} {int(elapsed / 10)}"
        if line != told:
            say(f"  {elapsed:5.0f} s  {phase}")
            told = line
        if phase == "ready":
            return elapsed
        time.sleep(0.5)


def _chat(http: httpx.Client, port: int, key: str | None, work: Work, say: Say) -> tuple[list[str], int, float]:
    """Texts in the order of the prompts, tokens of all of them, seconds for all of them."""
    url = f"http://{HOST}:{port}/v1"
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    model = http.get(f"{url}/models", headers=headers).raise_for_status().json()["data"][0]["id"]

    def ask(prompt: str) -> tuple[str, int]:
        body = {
            "model": model,
            "temperature": 0,
            "max_tokens": work.max_tokens,
            "messages": [{"role": "user", "content": prompt}],
        }
        answer = http.post(f"{url}/chat/completions", json=body, headers=headers).raise_for_status().json()
        return str(answer["choices"][0]["message"]["content"]), int(answer.get("usage", {}).get("completion_tokens", 0))

    texts, tokens, begin = [], 0, time.monotonic()
    with ThreadPoolExecutor(work.at_once) as pool:
        for text, length in pool.map(ask, work.prompts):
            texts.append(text)
            tokens += length
            if len(texts) % work.at_once == 0:
                say(f"  {time.monotonic() - begin:5.0f} s  {len(texts)} of {len(work.prompts)} chats answered")
    return texts, tokens, time.monotonic() - begin


def _stop(child: subprocess.Popen[bytes], log: Path, say: Say) -> None:
    child.terminate()
    code = child.wait(60)
    if code:
        raise EngineDied(
            f"`radiance serve` ended with {code} instead of 0 when it was asked to stop; the end of its log:\n{_tail(log)}"
        )
    say("  stopped")


def _status(http: httpx.Client, metrics_port: int) -> dict[str, Any]:
    result = http.get(f"http://{HOST}:{metrics_port}/status", timeout=10.0).raise_for_status().json()
    return dict(result)


def _free_ports() -> tuple[int, int]:
    with socket.socket() as one, socket.socket() as two:
        one.bind((HOST, 0))
        two.bind((HOST, 0))
        return one.getsockname()[1], two.getsockname()[1]


def _tail(log: Path, lines: int = 30) -> str:
    return "\n".join(log.read_text(errors="replace").splitlines()[-lines:])
