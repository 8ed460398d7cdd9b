"""A model hub on loopback, as far as huggingface_hub asks: revision, tree, resolve with ranges. And what goes wrong with hubs.

It is the server's side of the real client: nothing of huggingface_hub is replaced.
"""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@dataclass
class Repo:
    """`needs`: the token that may read it; `gate`: refuse with the hub's word for a gated repository."""

    files: dict[str, bytes]
    commit: str = COMMIT
    needs: str = ""
    gate: bool = False


@dataclass
class Hub:
    repos: dict[str, Repo]
    #: file -> bytes after which the connection breaks, once for each entry
    cuts: dict[str, list[int]] = field(default_factory=dict)
    #: every request: (method, path, Range)
    seen: list[tuple[str, str, str]] = field(default_factory=list)
    #: status for everything, such as 503
    broken: int = 0
    #: while not set, files are not answered
    open: threading.Event = field(default_factory=threading.Event)
    port: int = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def downloads(self, file: str) -> list[str]:
        return [given for method, path, given in self.seen if method == "GET" and path.endswith(f"/{file}")]


class _Handler(BaseHTTPRequestHandler):
    hub: Hub
    protocol_version = "HTTP/1.1"
    server_version = "hub"

    def do_HEAD(self) -> None:
        self._answer(body=False)

    def do_GET(self) -> None:
        self._answer(body=True)

    def _answer(self, body: bool) -> None:
        hub, path = self.hub, urlsplit(self.path).path
        hub.seen.append((self.command, path, self.headers.get("Range", "")))
        if hub.broken:
            self._send(hub.broken, b"broken")
            return
        parts = path.strip("/").split("/")
        api = parts[:2] == ["api", "models"]
        name = "/".join(parts[2:4] if api else parts[:2])
        repo = hub.repos.get(name)
        if repo is None:
            self._send(404, b"{}", **{"X-Error-Code": "RepoNotFound"})
            return
        if repo.needs and self.headers.get("Authorization") != f"Bearer {repo.needs}":
            code = {"X-Error-Code": "GatedRepo"} if repo.gate else {}
            self._send(403 if repo.gate else 401, b"{}", **code)
            return
        kind, revision = parts[4 if api else 2], parts[5 if api else 3]
        if revision not in (repo.commit, "main"):
            self._send(404, b"{}", **{"X-Error-Code": "RevisionNotFound"})
        elif kind == "revision":
            self._json({"id": name, "sha": repo.commit, "siblings": [{"rfilename": file} for file in repo.files]})
        elif kind == "tree":
            rows = [{"type": "file", "path": f, "size": len(d), "oid": _hash(d)} for f, d in repo.files.items()]
            self._json(rows)
        else:
            self._file(repo, "/".join(parts[4:]), body)

    def _file(self, repo: Repo, name: str, body: bool) -> None:
        data = repo.files[name]
        headers = {"ETag": f'"{_hash(data)}"', "X-Repo-Commit": repo.commit, "Accept-Ranges": "bytes"}
        if not body:
            self._send(200, data, body=False, **headers)
            return
        self.hub.open.wait(60)
        given = self.headers.get("Range", "")
        start = int(given.removeprefix("bytes=").split("-")[0]) if given else 0
        if start:
            headers["Content-Range"] = f"bytes {start}-{len(data) - 1}/{len(data)}"
        cuts = self.hub.cuts.get(name)
        self._send(206 if start else 200, data[start:], cut=cuts.pop(0) if cuts else None, **headers)

    def _json(self, value: object) -> None:
        self._send(200, json.dumps(value).encode(), **{"Content-Type": "application/json"})

    def _send(self, status: int, data: bytes, body: bool = True, cut: int | None = None, **headers: str) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        if body and self.command != "HEAD":
            self.wfile.write(data if cut is None else data[:cut])
        if cut is not None:
            self.wfile.flush()
            self.close_connection = True

    def log_message(self, format: str, *args: object) -> None:
        pass


def _hash(data: bytes) -> str:
    return hashlib.sha1(data).hexdigest()


@contextmanager
def serving(**repos: Repo) -> Iterator[Hub]:
    """Keyword names have a double underscore for the slash: tiny__model is the repository tiny/model."""
    hub = Hub({name.replace("__", "/"): repo for name, repo in repos.items()})
    hub.open.set()
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"hub": hub}))
    server.daemon_threads = True
    server.handle_error = lambda *_: None  # type: ignore[method-assign]  # a client that was killed is no news
    hub.port = server.server_address[1]
    threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
    try:
        yield hub
    finally:
        hub.open.set()
        server.shutdown()
        server.server_close()
