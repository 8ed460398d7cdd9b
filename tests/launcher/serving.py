"""Helpers of the launcher tests: a profile as text, a `radiance serve` as an object, waiting without timing."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx

ROOT = Path(__file__).parents[2]
#: longest wait for something that must happen; no test asserts how fast it does
PATIENCE = 60.0


def profile_text(folder: Path, **change: Any) -> str:
    """A profile called `tiny` whose model is a folder; YAML is a superset of JSON."""
    profile = {
        "schema_version": 1,
        "name": "tiny",
        "summary": "for tests",
        "model": {"path": str(folder)},
        "served_name": "tiny",
        "speculative": {"method": "mtp", "num_speculative_tokens": 3},
        "fast_draft": "enabled",
        "verified": "no",
        **change,
    }
    return json.dumps({key: value for key, value in profile.items() if value is not None}, indent=1)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def until(condition: Callable[[], Any], what: str) -> Any:
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        if found := condition():
            return found
        time.sleep(0.05)
    raise AssertionError(f"never happened: {what}")


class Served:
    """A `radiance serve` of a test: a real process with its ports."""

    def __init__(self, argv: list[str], tmp_path: Path, ports: dict[str, int]) -> None:
        self.port = ports.get("--port") or free_port()
        self.metrics_port = ports.get("--metrics-port") or free_port()
        self.notes = tmp_path / "notes"
        self.log_path = tmp_path / "serve.log"
        where = ["--host", "127.0.0.1", "--port", str(self.port), "--metrics-port", str(self.metrics_port)]
        cut = argv.index("--") if "--" in argv else len(argv)
        command = [sys.executable, "-m", "launcher", *argv[:cut], *where, *argv[cut:]]
        with self.log_path.open("wb") as log:
            self.process = subprocess.Popen(
                command, stdout=log, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, cwd=tmp_path
            )

    @property
    def log(self) -> str:
        return self.log_path.read_text()

    def get(self, path: str) -> httpx.Response | None:
        try:
            return httpx.get(f"http://127.0.0.1:{self.metrics_port}{path}", timeout=30, trust_env=False)
        except httpx.TransportError:
            return None

    def status(self) -> dict[str, Any]:
        answer = until(lambda: self.get("/status"), "/status answers")
        return dict(answer.json())

    def wait_ready(self) -> None:
        def ready() -> bool:
            assert self.process.poll() is None, self.log
            answer = self.get("/readyz")
            return answer is not None and answer.status_code == 200

        until(ready, "/readyz is 200")

    def wait_phase(self, phase: str) -> None:
        until(lambda: self.status()["phase"] == phase, f"phase {phase}")

    def seen(self) -> dict[str, Any]:
        path = self.notes / "seen.json"
        until(path.exists, "the fake vLLM started")
        return dict(json.loads(path.read_text()))

    def stop(self, number: int = signal.SIGTERM) -> int:
        self.process.send_signal(number)
        return self.process.wait(PATIENCE)


def alive(pid: int) -> bool:
    """A process that exists and is not a zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False
