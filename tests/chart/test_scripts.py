"""The scripts that the chart carries: what `helm test` calls well and what not, and how a worker waits for its leader."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from tests.chart import helm
from tests.processes import free_port, start, until

GOOD: dict[str, Any] = {
    "/v1/models": {"data": [{"id": "m"}]},
    "/v1/completions": {"choices": [{"text": " Paris."}]},
    "/metrics": 'radiance_ready 1.0\nradiance_vllm_scrape_success 1.0\nradiance_build_info{version="1 2"} 1.0\n',
    "/status": {
        "fast_draft": {"ok": True, "mode": "on", "reason": "active"},
        "acceptance": {"available": True, "acceptance_per_draft": 2.9, "expected_min": 2.5, "drafts": 600},
    },
}
STREAM = 'data: {"choices": [{"text": " Pa"}]}\n\ndata: {"choices": [{"text": "ris"}]}\n\ndata: [DONE]\n\n'


@contextmanager
def serving(answers: dict[str, Any], stream: str = STREAM, key: str = "") -> Iterator[str]:
    """A server for both addresses; an answer is JSON, a text, or a status."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            answer = answers.get(self.path, 404)
            asked = json.loads(self.rfile.read(int(self.headers.get("Content-Length") or 0)) or "{}")
            if asked.get("stream"):
                answer = stream
            if key and self.path.startswith("/v1") and self.headers.get("Authorization") != f"Bearer {key}":
                answer = 401
            body = (
                b"no"
                if isinstance(answer, int)
                else (answer if isinstance(answer, str) else json.dumps(answer)).encode()
            )
            self.send_response(answer if isinstance(answer, int) else 200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        do_POST = do_GET

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()


def smoke(check: str, url: str, **env: str) -> subprocess.CompletedProcess[str]:
    # A proxy of the cluster's egress must not catch calls to its own Services.
    given = {"API": url, "LAUNCHER": url, "http_proxy": "http://127.0.0.1:9", "PATH": "/usr/bin:/bin", **env}
    return subprocess.run(
        [sys.executable, helm.CHART / "files" / "smoke.py", check], env=given, capture_output=True, text=True
    )


@pytest.mark.parametrize("check", ["models", "completion", "metrics", "head"])
def test_a_good_server_passes(check: str) -> None:
    with serving(GOOD) as url:
        done = smoke(check, url)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(("models:", "metrics:", "head:"))


def changed(path: str, change: Callable[[Any], Any]) -> dict[str, Any]:
    answers = json.loads(json.dumps(GOOD))
    answers[path] = change(answers[path])
    return dict(answers)


FAULTS: dict[str, tuple[str, dict[str, Any], str]] = {
    "no model": ("models", {**GOOD, "/v1/models": {"data": []}}, "no model"),
    "an error": ("models", {**GOOD, "/v1/models": 503}, "503"),
    "an empty answer": ("completion", {**GOOD, "/v1/completions": {"choices": [{"text": " "}]}}, "empty completion"),
    "not ready": (
        "metrics",
        changed("/metrics", lambda text: text.replace("ready 1", "ready 0")),
        "radiance_ready is 0",
    ),
    "not ours": ("metrics", {**GOOD, "/metrics": "up 1\n"}, "radiance_ready is None"),
    "vLLM unread": ("metrics", changed("/metrics", lambda text: text.replace("success 1", "success 0")), "vLLM's own"),
    "head not as asked": (
        "head",
        changed("/status", lambda s: {**s, "fast_draft": {"ok": False, "mode": "on", "reason": "declined (bias)"}}),
        "declined (bias)",
    ),
    "drafts not accepted": (
        "head",
        changed("/status", lambda s: {**s, "acceptance": {**s["acceptance"], "acceptance_per_draft": 1.0}}),
        "less than the profile expects",
    ),
}


@pytest.mark.parametrize(("check", "answers", "words"), FAULTS.values(), ids=FAULTS)
def test_a_fault_is_named(check: str, answers: dict[str, Any], words: str) -> None:
    with serving(answers) as url:
        done = smoke(check, url)
    assert done.returncode == 1
    assert words in done.stderr


def test_a_cut_stream_is_a_fault() -> None:
    with serving(GOOD, stream=STREAM.replace("data: [DONE]\n\n", "")) as url:
        done = smoke("completion", url)
    assert done.returncode == 1
    assert "did not end with [DONE]" in done.stderr


@pytest.mark.parametrize(("given", "code"), [({"VLLM_API_KEY": "k"}, 0), ({}, 1)])
def test_the_key_of_the_api_is_sent(given: dict[str, str], code: int) -> None:
    with serving(GOOD, key="k") as url:
        assert smoke("completion", url, **given).returncode == code


def test_too_few_drafts_say_nothing() -> None:
    few = changed(
        "/status", lambda s: {**s, "acceptance": {**s["acceptance"], "acceptance_per_draft": 0.0, "drafts": 150}}
    )
    with serving(few) as url:
        assert smoke("head", url).returncode == 0


def test_a_worker_waits_until_the_leader_listens(tmp_path: Any) -> None:
    port = free_port()
    command = [sys.executable, str(helm.CHART / "files" / "wait.py"), "127.0.0.1", str(port), "60"]
    process = start([*command], tmp_path / "log")
    until(lambda: "waiting for the leader" in (tmp_path / "log").read_text(), "it says that it waits")
    assert process.poll() is None
    server = ThreadingHTTPServer(("127.0.0.1", port), BaseHTTPRequestHandler)
    try:
        assert process.wait(60) == 0
    finally:
        server.server_close()


def test_a_worker_does_not_wait_for_ever(tmp_path: Any) -> None:
    command = [sys.executable, helm.CHART / "files" / "wait.py", "127.0.0.1", str(free_port()), "0"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 1
    assert "did not listen" in done.stderr
