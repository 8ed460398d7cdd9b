"""The launcher's port: /metrics /livez /readyz /startupz /status /group. Open before vLLM is started, on threads of its own.

/livez     200 while the launcher looks after its vLLM, whatever state that is in; it ends by itself when vLLM cannot be helped
/startupz  200 once the server has been ready for the first time
/group     for other nodes of the same model (leader.py), once a second each: waits for nothing
/readyz    200 while requests should come: warm, healthy, not wedged, not stopping, draft head as required
"""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler
from socket import AF_INET, AF_INET6
from socketserver import ThreadingTCPServer
from typing import ClassVar

from launcher import exporter
from launcher.engine import Engine
from launcher.errors import SettingsConflict
from launcher.report import report
from launcher.scraper import Scraper, scraping
from launcher.states import SERVING

log = logging.getLogger("radiance")
Answer = tuple[int, str, bytes]
Routes = dict[str, Callable[[], Answer]]
#: longest wait of /status for new figures of vLLM; /metrics never waits
FRESH_SECONDS = 2.5
#: the supervision loop turns every 0.2 s; to kill and reap what is left of a vLLM takes half a minute at worst
STUCK_SECONDS = 120.0


@contextmanager
def serving(engine: Engine, host: str, port: int) -> Iterator[int]:
    """Answers until the block ends; gives the port (0 = a free one). Raises SettingsConflict when it is taken."""
    with scraping(engine) as scraper:
        yield from _answering(engine, scraper, host, port)


def _answering(engine: Engine, scraper: Scraper, host: str, port: int) -> Iterator[int]:
    handler = type("Handler", (_Handler,), {"routes": _routes(engine, scraper)})
    # NOTE: not http.server's class: it looks up the host's name when it binds, which can wait for a DNS server that is not there.
    traits = {
        "address_family": AF_INET6 if ":" in host else AF_INET,
        "allow_reuse_address": True,
        "daemon_threads": True,
    }
    server_class = type("Server", (ThreadingTCPServer,), traits)
    try:
        server: ThreadingTCPServer = server_class((host, port), handler)
    except OSError as error:
        raise SettingsConflict(
            f"cannot listen on {host}:{port} for metrics: {error.strerror}; choose another with --metrics-port"
        ) from error
    threading.Thread(target=server.serve_forever, name="web", args=(0.1,), daemon=True).start()
    try:
        yield server.server_address[1]
    finally:
        server.shutdown()
        server.server_close()


def _routes(engine: Engine, scraper: Scraper) -> Routes:
    def ready() -> Answer:
        return _verdict(*engine.readiness())

    def live() -> Answer:
        idle = 0.0 if engine.turned is None else time.monotonic() - engine.turned
        return _verdict(idle < STUCK_SECONDS, f"phase is {engine.phase}, last looked after {idle:.0f} s ago")

    def started() -> Answer:
        return _verdict(any(phase in engine.since for phase in SERVING), f"phase is {engine.phase}")

    def metrics() -> Answer:
        return 200, exporter.CONTENT_TYPE, exporter.render(engine)

    def status() -> Answer:
        scraper.fresh(FRESH_SECONDS)
        return 200, "application/json", json.dumps(report(engine), indent=2).encode() + b"\n"

    def group() -> Answer:
        good, reason = engine.readiness()
        begun = engine.begun if engine.life else None
        found = {"phase": str(engine.phase), "ready": good, "reason": reason, "started": begun}
        return 200, "application/json", json.dumps(found).encode()

    return {
        "/metrics": metrics, "/livez": live, "/readyz": ready, "/startupz": started, "/status": status, "/group": group,
    }  # fmt: skip


def _verdict(good: bool, reason: str) -> Answer:
    return (200 if good else 503), "text/plain; charset=utf-8", f"{reason}\n".encode()


class _Handler(BaseHTTPRequestHandler):
    routes: ClassVar[Routes] = {}
    server_version = "radiance"
    sys_version = ""
    #: a client that connects and says nothing must not hold a thread for ever
    timeout = 10

    def do_GET(self) -> None:
        route = self.routes.get(self.path.split("?", 1)[0])
        if route is None:
            status, kind, body = 404, "text/plain; charset=utf-8", f"try {' '.join(self.routes)}\n".encode()
        else:
            try:
                status, kind, body = route()
            except Exception:  # one bad answer must not end the port that explains everything else
                log.exception("%s failed", self.path)
                status, kind, body = 500, "text/plain; charset=utf-8", b"internal error; the launcher's log has it\n"
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    do_HEAD = do_GET

    def log_message(self, format: str, *args: object) -> None:
        """Probes come every few seconds; their requests are not news."""
