"""A stand-in for the `vllm` executable: real processes, real ports, real signals, no model.

It takes the arguments of `vllm serve`, waits for the other node of two (--nnodes) as vLLM's ranks do for each other, answers
/health, /metrics, /v1/models and the completions, writes a status file as the plugin would, ends running requests before it
ends (as --shutdown-timeout makes vLLM do), and misbehaves as FAKE_VLLM
asks (words, comma-separated):

    exit=N         end at once with code N          die=N         end with code N after the first completion
    hang           never open the port              slow=N        open it after N seconds
    stubborn       ignore SIGTERM                   steps         announce the phases of a start, each when <phase>.go exists
    worker         have a child that ignores SIGTERM
    daemon         have a grandchild that ignores SIGTERM and has left parent, group and session
    secrets        print the secrets of the environment, in ways that programs do
    head=STATE     what the status file says of the draft head (default: active when asked for)
    broken         answer completions with 500
    drafts=N       drafts counted for each completion (default 10)
    say=FILE       print what is in FILE before anything else

and from one moment to the next, when a file of that name is in FAKE_VLLM_DIR:

    wedged         requests run, no token comes     deaf          /health is not answered
    low            no draft token is accepted       end           end with the code in the file, which is taken away
    spoiled        the next starts end with the code in the file

FAKE_VLLM_DIR is where it notes each start in seen.json (the last one) and lives.jsonl (all), and which processes it has.
"""

from __future__ import annotations

import json
import os
import signal
import socket
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
STEPS = {
    "loading": "INFO Starting to load model fake...",
    "packing": "INFO Radiance draft head lm_head (Fake): packing begins",
    "capturing": "INFO Radiance draft head lm_head: 8 rows of [8, 8] bf16 -> 2 bits\nINFO Model loading took 1 GiB",
    "opening": "Capturing CUDA graphs (FULL): 100%\rCapturing CUDA graphs (FULL): 100%\nINFO Graph capturing finished",
}
SLEEPER = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)"
DAEMON = f"import os, sys; os.fork() and os._exit(0); os.setsid(); print(os.getpid(), flush=True); {SLEEPER}"


class Handler(BaseHTTPRequestHandler):
    drafts = 0
    accepted = 0
    lock = threading.Lock()

    def do_GET(self) -> None:
        while there("deaf"):
            time.sleep(0.05)
        if self._refused():
            return
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
        if self._refused():
            return None
        with (NOTES / "requests.jsonl").open("a") as file:
            file.write(json.dumps(body) + "\n")
        if "broken" in WORDS:
            return self._answer(500, b"")
        while body.get("stop") == ["answer.go"] and not there("answer.go"):
            time.sleep(0.05)
        with Handler.lock:
            Handler.drafts += (more := int(WORDS.get("drafts", 10)))
            Handler.accepted += 0 if there("low") else more
        text = f"answer to {body.get('messages') or body['prompt']}"
        answer = {"choices": [{"text": text, "message": {"content": text}}], "usage": {"completion_tokens": 30}}
        self._answer(200, json.dumps(answer).encode())
        if "die" in WORDS:
            os._exit(int(WORDS["die"]))
        return None

    def _refused(self) -> bool:
        """As vLLM: a key for all of /v1, none for the rest."""
        key = os.environ.get("VLLM_API_KEY")
        if not key or not self.path.startswith("/v1") or self.headers.get("Authorization") == f"Bearer {key}":
            return False
        self._answer(401, b"")
        return True

    def _metrics(self) -> str:
        where = 'engine="0",model_name="fake"'
        rows = [("num_drafts", "", Handler.drafts), ("num_draft_tokens", "", DEPTH * Handler.drafts)]
        positions = [int(share * Handler.accepted) for share in SHARE]
        rows += [("num_accepted_tokens", "", sum(positions))]
        rows += [("num_accepted_tokens_per_pos", f',position="{k}"', count) for k, count in enumerate(positions)]
        lines = [
            "# TYPE vllm:num_requests_running gauge",
            f"vllm:num_requests_running{{{where}}} {int(there('wedged'))}",
        ]
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


class Server(ThreadingHTTPServer):
    daemon_threads = False  # closing it waits for the requests that run


def there(name: str) -> bool:
    return (NOTES / name).exists()


def wait_for(name: str) -> None:
    while not there(name):
        time.sleep(0.02)


def option(name: str) -> str:
    return sys.argv[sys.argv.index(name) + 1]


def meet() -> list[socket.socket]:
    """Node 0 of two waits for the other, that one for node 0. To be kept: what is collected is closed."""
    if "--nnodes" not in sys.argv:
        return []
    where = option("--master-addr"), int(option("--master-port"))
    if "--headless" not in sys.argv:
        listener = socket.create_server(where)
        return [listener, listener.accept()[0]]
    while True:
        try:
            return [socket.create_connection(where)]
        except OSError:
            time.sleep(0.05)


def write_status() -> None:
    asked = os.environ["RADIANCE_FAST_DRAFT"]
    state = WORDS.get("head") or {"0": "", "1": "active", "shadow": "shadow"}[asked]
    now = time.time()
    heads = [status.HeadStatus("lm_head", status.HeadState(state), reason="fake", since=now)] if state else []
    folder = Path(os.environ["RADIANCE_STATE_DIR"])
    snapshot = status.Snapshot(os.getpid(), 0, now, now, "0", heads=heads)
    status.write(status.path_for(folder, 0, os.getpid()), snapshot)


def have_children() -> list[int]:
    pids = [os.getpid()]
    if "worker" in WORDS:
        pids.append(subprocess.Popen([sys.executable, "-c", SLEEPER]).pid)
    if "daemon" in WORDS:
        started = subprocess.Popen([sys.executable, "-c", DAEMON], stdout=subprocess.PIPE, text=True)
        assert started.stdout is not None
        pids.append(int(started.stdout.readline()))
        started.wait()
    return pids


def note(pids: list[int]) -> None:
    folder = os.environ["RADIANCE_STATE_DIR"]
    seen = {"argv": sys.argv[1:], "env": dict(os.environ), "pids": pids, "state_mode": os.stat(folder).st_mode & 0o777}
    config = os.environ.get("VLLM_LOGGING_CONFIG_PATH")
    seen["logging"] = json.loads(Path(config).read_text()) if config else None
    draft = NOTES / f"{os.getpid()}.tmp"
    draft.write_text(json.dumps(seen))
    with (NOTES / "lives.jsonl").open("a") as file:
        file.write(draft.read_text() + "\n")
    draft.rename(NOTES / "seen.json")


def tell_secrets() -> None:
    token, key = os.environ.get("HF_TOKEN", ""), os.environ.get("VLLM_API_KEY", "")
    print(f"non-default args: {{'api_key': ['{key}']}}", flush=True)
    print(f"Authorization: Bearer {token}", file=sys.stderr, flush=True)
    os.write(1, f"in two pieces {token[:5]}".encode())
    time.sleep(0.2)
    os.write(1, f"{token[5:]}\n".encode())
    os.write(1, f"{key} 10%\r{key} 20%\r".encode())
    print(json.dumps({"level": "INFO", "logger": "x", "message": f"key {key}", "timestamp": "now"}), flush=True)


def watch_for_the_end() -> None:
    while True:
        if there("end"):
            code = int((NOTES / "end").read_text())
            (NOTES / "end").unlink()
            os._exit(code)
        time.sleep(0.05)


def main() -> None:
    server: Server | None = None

    def stop(*_: object) -> None:
        if server is None:
            os._exit(0)
        threading.Thread(target=server.shutdown).start()

    signal.signal(signal.SIGTERM, signal.SIG_IGN if "stubborn" in WORDS else stop)
    note(have_children())
    if "say" in WORDS:
        print(Path(WORDS["say"]).read_text(), flush=True)
    if "secrets" in WORDS:
        tell_secrets()
    if there("spoiled"):
        sys.exit(int((NOTES / "spoiled").read_text()))
    if "exit" in WORDS:
        sys.exit(int(WORDS["exit"]))
    while "hang" in WORDS:
        time.sleep(0.1)
    time.sleep(float(WORDS.get("slow", 0)))
    for phase, text in STEPS.items() if "steps" in WORDS else ():
        wait_for(f"{phase}.go")
        print(text, flush=True)
    met = meet()
    write_status()
    threading.Thread(target=watch_for_the_end, daemon=True).start()
    while met and "--headless" in sys.argv:  # as vLLM's: no port, and no notice of a leader that is gone
        time.sleep(0.05)
    server = Server((option("--host"), int(option("--port"))), Handler)
    server.serve_forever(0.05)
    server.server_close()


if __name__ == "__main__":
    main()
