"""A stand-in for the `vllm` executable: real processes, real ports, real signals, no model.

It takes the arguments of `vllm serve`, answers /health, /metrics, /v1/models and the completions, writes a status file as
the plugin would, and misbehaves as FAKE_VLLM asks (words, comma-separated):

    exit=N         end at once with code N          die=N         end with code N after the first completion
    hang           never open the port              stubborn      ignore SIGTERM
    worker         have a child that ignores SIGTERM
    head=STATE     what the status file says of the draft head (default: active when asked for)
    broken         answer completions with 500
    drafts=N       drafts counted for each completion (default 10)

FAKE_VLLM_DIR is where it notes what it was started with, and which processes it consists of.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from radiance import status

WORDS = dict(word.partition("=")[::2] for word in os.environ.get("FAKE_VLLM", "").split(",") if word)
NOTES = Path(os.environ["FAKE_VLLM_DIR"])
DEPTH = 3
#: for each completion of 10 drafts: 2 accepted nothing, 1 one, 2 two, 5 all three -> P = 8, 7, 5
SHARE = (0.8, 0.7, 0.5)


class Handler(BaseHTTPRequestHandler):
    drafts = 0
    lock = threading.Lock()

    def do_GET(self) -> None:
        if self.path == "/health":
            self._answer(200, b"")
        elif self.path == "/v1/models":
            self._answer(200, json.dumps({"data": [{"id": option("--served-model-name")}]}).encode())
        elif self.path == "/metrics":
            self._answer(200, self._metrics().encode())
        else:
            self._answer(404, b"")

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if "broken" in WORDS:
            return self._answer(500, b"")
        with Handler.lock:
            Handler.drafts += int(WORDS.get("drafts", 10))
        text = f"answer to {body.get('messages') or body['prompt']}"
        self._answer(200, json.dumps({"choices": [{"text": text, "message": {"content": text}}]}).encode())
        if "die" in WORDS:
            os._exit(int(WORDS["die"]))
        return None

    def _metrics(self) -> str:
        where = 'engine="0",model_name="fake"'
        rows = [("num_drafts", "", Handler.drafts), ("num_draft_tokens", "", DEPTH * Handler.drafts)]
        positions = [int(share * Handler.drafts) for share in SHARE]
        rows += [("num_accepted_tokens", "", sum(positions))]
        rows += [("num_accepted_tokens_per_pos", f',position="{k}"', count) for k, count in enumerate(positions)]
        lines = []
        for name, more, value in rows:
            lines += [f"# TYPE vllm:spec_decode_{name} counter"] if more != ',position="1"' else []
            lines.append(f"vllm:spec_decode_{name}_total{{{where}{more}}} {float(value)}")
        return "\n".join(lines) + "\n"

    def _answer(self, code: int, body: bytes) -> None:
        self.send_response(code)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        pass


def option(name: str) -> str:
    return sys.argv[sys.argv.index(name) + 1]


def write_status() -> None:
    asked = os.environ["RADIANCE_FAST_DRAFT"]
    state = WORDS.get("head") or {"0": "", "1": "active", "shadow": "shadow"}[asked]
    now = time.time()
    heads = [status.HeadStatus("lm_head", status.HeadState(state), reason="fake", since=now)] if state else []
    folder = Path(os.environ["RADIANCE_STATE_DIR"])
    snapshot = status.Snapshot(os.getpid(), 0, now, now, "0", heads=heads)
    status.write(status.path_for(folder, 0, os.getpid()), snapshot)


def main() -> None:
    pids = [os.getpid()]
    if "stubborn" in WORDS:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    else:
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    if "worker" in WORDS:
        sleeper = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)"
        pids.append(subprocess.Popen([sys.executable, "-c", sleeper]).pid)
    folder = os.environ["RADIANCE_STATE_DIR"]
    seen = {"argv": sys.argv[1:], "env": dict(os.environ), "pids": pids, "state_mode": os.stat(folder).st_mode & 0o777}
    draft = NOTES / f"{os.getpid()}.tmp"
    draft.write_text(json.dumps(seen))
    draft.rename(NOTES / "seen.json")
    if "exit" in WORDS:
        sys.exit(int(WORDS["exit"]))
    while "hang" in WORDS:
        time.sleep(0.1)
    write_status()
    ThreadingHTTPServer((option("--host"), int(option("--port"))), Handler).serve_forever()


if __name__ == "__main__":
    main()
