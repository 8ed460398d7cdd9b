"""Helpers of the launcher tests: a profile as text, a `radiance serve` as an object."""

from __future__ import annotations

import json
import signal
import sys
from pathlib import Path
from typing import Any

import httpx

from tests import processes
from tests.processes import PATIENCE, free_port, until

ROOT = Path(__file__).parents[2]


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


class Served:
    """A `radiance serve` of a test: a real process with its ports."""

    def __init__(
        self, argv: list[str], tmp_path: Path, ports: dict[str, int], mark: dict[str, str], host: str, notes: Path
    ) -> None:
        #: of the environment that it and all its descendants have
        self.mark = mark
        self.host, self.notes = host, notes
        self.port = ports.get("--port") or free_port()
        self.metrics_port = ports.get("--metrics-port") or free_port()
        self.log_path = notes.with_suffix(".log")
        where = ["--host", host, "--port", str(self.port), "--metrics-port", str(self.metrics_port)]
        cut = argv.index("--") if "--" in argv else len(argv)
        command = [sys.executable, "-m", "launcher", *argv[:cut], *where, *argv[cut:]]
        self.process = processes.start(command, self.log_path, cwd=tmp_path)

    @property
    def log(self) -> str:
        return self.log_path.read_text()

    def get(self, path: str) -> httpx.Response | None:
        try:
            return httpx.get(f"http://{self.host}:{self.metrics_port}{path}", timeout=30, trust_env=False)
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

    def left(self) -> list[int]:
        """The processes there are of it, wherever they went."""
        return processes.marked(self.mark)

    def stop(self, number: int = signal.SIGTERM) -> int:
        self.process.send_signal(number)
        return self.process.wait(PATIENCE)
