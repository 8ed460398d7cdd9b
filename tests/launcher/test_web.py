"""The launcher's port over real HTTP."""

from __future__ import annotations

import socket
import time

import httpx
import pytest
from figures import (
    Upstream,
    head,
    put,
    vllm_text,
)

from launcher import exporter, web
from launcher.engine import Engine
from launcher.states import Phase


def test_the_port_answers_over_http(engine: Engine) -> None:
    with (
        web.serving(engine, "127.0.0.1", 0) as port,
        httpx.Client(base_url=f"http://127.0.0.1:{port}", trust_env=False) as http,
    ):
        report = http.get("/status").json()
        answer = http.get("/metrics")
        assert answer.headers["Content-Type"].startswith("text/plain; version=")
        assert "radiance_drafts_total 208.0" in answer.text
        assert report["acceptance"]["acceptance_per_draft"] == 562 / 208
        assert report["acceptance"]["accepted_per_position"] == [194, 188, 180]
        worker = report["workers"][0]
        assert worker["heads"][0]["state"] == "active"
        assert (worker["engine"], worker["stale"]) == (0, True), "its heartbeat is of 1970"
        draft = {"mode": "on", "fell_back": False, "require": "warn", "ok": True, "reason": "rank 0 lm_head: active"}
        assert report["fast_draft"] == draft
        assert http.head("/readyz").status_code == 200
        with socket.create_connection(("127.0.0.1", port)) as raw:
            raw.sendall(b"HEAD /readyz HTTP/1.0\r\n\r\n")
            assert b"".join(iter(lambda: raw.recv(4096), b"")).endswith(b"\r\n\r\n"), "a HEAD answer has no body"
        assert http.get("/readyz?verbose=1").text == "ready\n"
        assert http.get("/").status_code == 404


def test_other_nodes_are_told_when_vllm_was_started(engine: Engine, upstream: Upstream) -> None:
    """Nothing before it was, and without a look at vLLM."""
    with (
        web.serving(engine, "127.0.0.1", 0) as port,
        httpx.Client(base_url=f"http://127.0.0.1:{port}", trust_env=False) as http,
    ):
        found = {"phase": "ready", "ready": True, "reason": "ready", "started": engine.begun}
        assert http.get("/group").json() == found
        engine.begin()
        assert http.get("/group").json()["started"] == engine.begun > found["started"]
        upstream.free.clear()
        assert http.get("/group", timeout=2).json()["phase"] == "loading", "a vLLM that hangs is not waited for"
        engine.life = 0
        assert http.get("/group").json()["started"] is None


def test_a_fault_in_one_answer_does_not_close_the_port(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(_: Engine) -> bytes:
        raise RuntimeError("boom")

    monkeypatch.setattr(exporter, "render", broken)
    with (
        web.serving(engine, "127.0.0.1", 0) as port,
        httpx.Client(base_url=f"http://127.0.0.1:{port}", trust_env=False) as http,
    ):
        assert http.get("/metrics").status_code == 500
        assert http.get("/livez").status_code == 200


def test_status_tells_a_living_worker_from_a_stale_one(engine: Engine) -> None:
    put(engine, head(), pid=200, heartbeat=time.time() + 3600)
    with (
        web.serving(engine, "127.0.0.1", 0) as port,
        httpx.Client(base_url=f"http://127.0.0.1:{port}", trust_env=False) as http,
    ):
        workers = http.get("/status").json()["workers"]
    assert [(w["pid"], w["stale"]) for w in workers] == [(100, True), (200, False)]


def test_status_waits_for_figures_that_are_newer_than_the_question(
    engine: Engine, upstream: Upstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(web, "FRESH_SECONDS", 60.0)
    with (
        web.serving(engine, "127.0.0.1", 0) as port,
        httpx.Client(base_url=f"http://127.0.0.1:{port}", trust_env=False, timeout=60) as http,
    ):
        for drafts in (300, 400, 500):
            upstream.text = vllm_text(drafts=drafts)
            assert http.get("/status").json()["acceptance"]["drafts"] == drafts


def test_livez_is_503_only_when_the_supervision_itself_is_stuck(engine: Engine) -> None:
    with (
        web.serving(engine, "127.0.0.1", 0) as port,
        httpx.Client(base_url=f"http://127.0.0.1:{port}", trust_env=False) as http,
    ):
        engine.turned = time.monotonic()
        for phase in Phase:
            engine.timeline.begin(first=False)
            engine.enter(phase)
            assert http.get("/livez").status_code == 200, phase
        engine.turned = time.monotonic() - web.STUCK_SECONDS
        assert http.get("/livez").status_code == 503
