"""Real Prometheus and Alertmanager for a test: own folder, own ports on loopback, the configuration of deploy/ inside."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx
import yaml
from promql import ROOT, RULES
from tools import require

from tests.processes import free_port, running, until


class Watch:
    """A Prometheus that scrapes one Radiance, and an Alertmanager that posts to `posts`."""

    def __init__(self, http: httpx.Client, posts: list[dict[str, Any]]) -> None:
        self.http = http
        self.posts = posts

    def query(self, expr: str) -> list[dict[str, Any]]:
        answer = self.http.get("/api/v1/query", params={"query": expr}).json()
        assert answer["status"] == "success", f"{expr}: {answer}"
        return list(answer["data"]["result"])

    def value(self, expr: str) -> float:
        [sample] = self.query(expr)
        return float(sample["value"][1])


def filled(expr: str) -> str:
    """An expression of the dashboard as Grafana sends it."""
    expr = expr.replace("$instance", ".*").replace("$__rate_interval", "1m").replace("$__range", "5m")
    assert "$" not in expr
    return expr


@contextmanager
def watching(folder: Path, radiance: int, patience: str | None = None) -> Iterator[Watch]:
    """Until the block ends. `patience` replaces the time an alert has to be true before it fires."""
    prometheus, alertmanager = require("prometheus"), require("prometheus-alertmanager")
    posts: list[dict[str, Any]] = []
    mine, theirs = free_port(), free_port()
    with ExitStack() as stack:
        hook = stack.enter_context(_webhook(posts))
        for path in RULES:
            rules = yaml.safe_load(path.read_text())
            for rule in rules["groups"][0]["rules"]:
                if patience and "for" in rule:
                    rule["for"] = patience
            (folder / path.name).write_text(yaml.safe_dump(rules))
        (folder / "prometheus.yml").write_text(yaml.safe_dump(_prometheus(radiance, theirs)))
        (folder / "alertmanager.yml").write_text(yaml.safe_dump(_alertmanager(hook)))
        command = [alertmanager, f"--config.file={folder}/alertmanager.yml", f"--storage.path={folder}/am"]
        command += [f"--web.listen-address=127.0.0.1:{theirs}", "--cluster.listen-address="]
        stack.enter_context(running(command, folder / "alertmanager.log"))
        command = [prometheus, f"--config.file={folder}/prometheus.yml", f"--storage.tsdb.path={folder}/data"]
        command += [f"--web.listen-address=127.0.0.1:{mine}", "--log.level=warn"]
        stack.enter_context(running(command, folder / "prometheus.log"))
        http = stack.enter_context(httpx.Client(base_url=f"http://127.0.0.1:{mine}", trust_env=False, timeout=30))
        watch = Watch(http, posts)

        def up() -> bool:
            try:
                return bool(http.get("/-/ready").status_code == 200 and watch.query('up{job="radiance"} == 1'))
            except httpx.TransportError:
                return False

        until(up, f"Prometheus scrapes; see {folder}/prometheus.log")
        yield watch


@contextmanager
def _webhook(posts: list[dict[str, Any]]) -> Iterator[int]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            posts.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(200)
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
    try:
        yield server.server_address[1]
    finally:
        server.shutdown()
        server.server_close()


def _prometheus(radiance: int, alertmanager: int) -> dict[str, Any]:
    """deploy/prometheus/prometheus.yml with this test's ports and without its patience."""
    config: dict[str, Any] = yaml.safe_load((ROOT / "deploy" / "prometheus" / "prometheus.yml").read_text())
    config["global"] = {"scrape_interval": "500ms", "scrape_timeout": "500ms", "evaluation_interval": "500ms"}
    config["scrape_configs"] = [job for job in config["scrape_configs"] if job["job_name"] == "radiance"]
    config["scrape_configs"][0]["static_configs"] = [{"targets": [f"127.0.0.1:{radiance}"]}]
    config["alerting"]["alertmanagers"][0]["static_configs"] = [{"targets": [f"127.0.0.1:{alertmanager}"]}]
    return config


def _alertmanager(hook: int) -> dict[str, Any]:
    route = {"receiver": "test", "group_by": ["alertname"], "group_wait": "0s", "group_interval": "1s"}
    return {"route": route, "receivers": [{"name": "test", "webhook_configs": [{"url": f"http://127.0.0.1:{hook}/"}]}]}
