"""`radiance demo`: the same chats through the 2-bit head and through the stock head, on a real `radiance serve`, compared.

Everything a user would do, over the same commands and ports: start, wait until ready, chat, read /status, stop. Nothing is
taken from inside the server, so what the demo shows is what a deployment shows.
"""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from launcher import guard, smollm2
from launcher.errors import EngineDied
from launcher.profiles import Profile
from radiance.settings import Mode

HOST = "127.0.0.1"
ENOUGH_DRAFTS = 200
MAX_TOKENS = 112
AT_ONCE = 8
PROMPTS = (
    "What is the capital of France, and what is it known for?",
    "Explain in a few sentences why the sky is blue.",
    "How do I make pancakes? Give me the steps.",
    "Write a short story about a lighthouse keeper and a lost seal.",
    "What is the difference between a virus and a bacterium?",
    "Give me three tips for learning to play the piano.",
    "Describe the water cycle to a child.",
    "What causes the seasons on Earth?",
    "Write a polite email that asks for a day off.",
    "Why do people dream? Answer briefly.",
    "List five vegetables and one dish for each.",
    "What is a binary search, and when is it useful?",
    "Tell me about the life of a honey bee.",
    "How does a refrigerator keep food cold?",
    "Write a four-line poem about rain.",
    "What should I pack for a week in the mountains?",
    "Explain what a black hole is.",
    "How do plants make their food?",
    "Give me a simple plan for saving money.",
    "What were the causes of the First World War?",
    "Write a Python function that reverses a string, and explain it.",
    "How can I sleep better at night?",
    "What makes a good friend?",
    "Describe a busy market in the morning.",
)


@dataclass(frozen=True)
class Result:
    """What one serve showed. Counts are those of the chats alone, without the warm-up."""

    texts: tuple[str, ...]
    drafts: int
    accepted: int
    head_ok: bool
    head: str
    seconds_to_ready: float

    @property
    def acceptance(self) -> float:
        return self.accepted / self.drafts if self.drafts else 0.0


def run(profile: Profile, profiles_dir: Path | None, vllm: str, environ: Mapping[str, str]) -> int:
    """Print the comparison; the exit code says whether it may be believed."""
    if profile.model.embedded:
        smollm2.prepare(smollm2.folder(environ), _say)
    command = [sys.executable, "-m", "launcher", "serve", "--profile", profile.name, "--vllm", vllm]
    if profiles_dir:
        command += ["--profiles-dir", str(profiles_dir)]
    with tempfile.TemporaryDirectory(prefix="radiance-demo-") as logs:
        fast = _serve_and_chat(command, Mode.ON, environ, Path(logs))
        stock = _serve_and_chat(command, Mode.OFF, environ, Path(logs))
    same = sum(a == b for a, b in zip(fast.texts, stock.texts, strict=True))
    _say("")
    for prompt, text in list(zip(PROMPTS, fast.texts, strict=True))[:3]:
        _say(f"> {prompt}\n{text.strip()}\n")
    _say(f"draft head: fast run {fast.head}; stock run {stock.head}")
    _say(f"ready after {fast.seconds_to_ready:.0f} s (2-bit head), {stock.seconds_to_ready:.0f} s (stock head)")
    _say(
        f"identical answers: {same} of {len(PROMPTS)} (greedy; bf16 near-ties may fall differently when batches differ)"
    )
    ratio = fast.acceptance / stock.acceptance if stock.acceptance else 0.0
    _say(
        f"acceptance_per_draft fast={fast.acceptance:.3f} stock={stock.acceptance:.3f} "
        f"drafts_fast={fast.drafts} drafts_stock={stock.drafts} ratio={ratio:.3f}"
    )
    _say(
        f"both servers are stopped; `make serve PROFILE={profile.name}` leaves one up (metrics: http://{HOST}:9410/metrics)"
    )
    return _judge(fast, stock)


def _judge(fast: Result, stock: Result) -> int:
    faults = []
    if not fast.head_ok:
        faults.append(f"the 2-bit head was not active: {fast.head}")
    faults += [f"only {r.drafts} drafts with the {name} head, too few to compare (want {ENOUGH_DRAFTS})"
               for name, r in (("2-bit", fast), ("stock", stock)) if r.drafts < ENOUGH_DRAFTS]  # fmt: skip
    for fault in faults:
        _say(f"FAILED: {fault}")
    return 1 if faults else 0


def _serve_and_chat(command: list[str], mode: Mode, environ: Mapping[str, str], logs: Path) -> Result:
    name = "2-bit head" if mode is Mode.ON else "stock head"
    log = logs / f"{mode.name.lower()}.log"
    with _server(command, mode, environ, log) as (child, port, metrics_port):
        _say(f"starting vLLM with the {name}: API http://{HOST}:{port}, metrics http://{HOST}:{metrics_port}/metrics")
        with httpx.Client(trust_env=False, timeout=600.0) as http:
            seconds = _until_ready(http, child, metrics_port, log)
            before = _status(http, metrics_port)["acceptance"]
            texts = _chat(http, port, environ.get("VLLM_API_KEY"))
            after = _status(http, metrics_port)
        _stop(child, log)
    drafted = after["acceptance"]
    if not drafted["available"]:
        raise EngineDied(f"no acceptance to compare: {drafted['reason']}")
    counts = [drafted[key] - before.get(key, 0) for key in ("drafts", "accepted_tokens")]
    head = after["fast_draft"]
    return Result(tuple(texts), counts[0], counts[1], head["ok"], head["reason"], seconds)


@contextmanager
def _server(
    command: list[str], mode: Mode, environ: Mapping[str, str], log: Path
) -> Iterator[tuple[subprocess.Popen[bytes], int, int]]:
    port, metrics_port = _free_ports()
    argv = [*command, "--host", HOST, "--port", str(port), "--metrics-port", str(metrics_port)]
    env = {**environ, "RADIANCE_FAST_DRAFT": str(mode)}
    with log.open("wb") as output:
        # A demo that is killed takes its server along.
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


def _until_ready(http: httpx.Client, child: subprocess.Popen[bytes], metrics_port: int, log: Path) -> float:
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
            _say(f"  {elapsed:5.0f} s  {phase}")
            told = line
        if phase == "ready":
            return elapsed
        time.sleep(0.5)


def _chat(http: httpx.Client, port: int, key: str | None) -> list[str]:
    """Every prompt once, greedily, AT_ONCE at a time."""
    url = f"http://{HOST}:{port}/v1"
    begin = time.monotonic()
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    model = http.get(f"{url}/models", headers=headers).raise_for_status().json()["data"][0]["id"]

    def ask(prompt: str) -> str:
        body = {
            "model": model,
            "temperature": 0,
            "max_tokens": MAX_TOKENS,
            "messages": [{"role": "user", "content": prompt}],
        }
        answer = http.post(f"{url}/chat/completions", json=body, headers=headers).raise_for_status()
        return str(answer.json()["choices"][0]["message"]["content"])

    texts = []
    with ThreadPoolExecutor(AT_ONCE) as pool:
        for text in pool.map(ask, PROMPTS):
            texts.append(text)
            if len(texts) % AT_ONCE == 0:
                _say(f"  {time.monotonic() - begin:5.0f} s  {len(texts)} of {len(PROMPTS)} chats answered")
    return texts


def _stop(child: subprocess.Popen[bytes], log: Path) -> None:
    child.terminate()
    code = child.wait(60)
    if code:
        raise EngineDied(
            f"`radiance serve` ended with {code} instead of 0 when it was asked to stop; the end of its log:\n{_tail(log)}"
        )
    _say("  stopped")


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


def _say(line: str) -> None:
    print(line, flush=True)
