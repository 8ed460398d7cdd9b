"""How vLLM is read: once, in the background, whatever it answers; restarts, wedged engines, --passthrough."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from figures import (
    WHO,
    Upstream,
    head,
    names,
    parsed,
    put,
    samples,
    serving_engine,
    value,
    vllm_text,
)

from launcher import exporter
from launcher.engine import Engine
from launcher.scraper import Scraper
from tests.processes import until


def test_while_vllm_is_down_everything_else_is_there(engine: Engine, upstream: Upstream) -> None:
    scraper = Scraper(engine)
    samples(engine, scraper)
    upstream.shutdown()
    upstream.server_close()
    found = samples(engine, scraper)
    assert value(found, "vllm_scrape_success") == 0
    assert value(found, "draft_head_calls_total", **WHO) == 40
    assert value(found, "drafts_total") == 208, "a counter does not go away"


def test_vllm_without_counters_of_drafts_is_said(engine: Engine, upstream: Upstream) -> None:
    upstream.text = "# TYPE vllm:num_requests_running gauge\nvllm:num_requests_running 1\n"
    found = samples(engine)
    assert value(found, "vllm_scrape_success") == 1
    assert value(found, "vllm_spec_metrics_present") == 0


@pytest.mark.parametrize("text", ["vllm:spec_decode_num_drafts_total nonsense\n", "<html>", "vllm:spec_decode_x{"])
def test_an_answer_that_is_no_metrics_is_a_failed_reading_or_nothing(
    engine: Engine, upstream: Upstream, text: str
) -> None:
    upstream.text = text
    found = samples(engine)
    assert value(found, "vllm_spec_metrics_present") == 0
    assert value(found, "drafts_total") == 0


def test_a_restarted_vllm_does_not_take_counters_back(engine: Engine, upstream: Upstream) -> None:
    scraper = Scraper(engine)
    before = samples(engine, scraper)
    engine.begin()
    upstream.text = vllm_text(drafts=10, positions=(8, 7, 5))
    put(engine, head(calls=5, stock_calls={"rows": 1}, lazy_fired=1, lazy_phase="serving"), pid=200)
    after = samples(engine, scraper)
    assert value(after, "drafts_total") == 218
    assert value(after, "accepted_tokens_per_draft_bucket", le="0.0") == 14 + 2
    assert value(after, "draft_head_calls_total", **WHO) == 45
    assert value(after, "draft_head_stock_calls_total", reason="rows", **WHO) == 4
    assert value(after, "draft_head_lazy_quantisations_total", phase="profile", **WHO) == 1
    assert value(after, "draft_head_lazy_quantisations_total", phase="serving", **WHO) == 1
    assert value(after, "draft_head_latency_seconds_count", clock="host", **WHO) == 80
    assert value(after, "vllm_restarts_total") == 1
    grows = [key for key in before if key[0].endswith(("_total", "_bucket", "_count", "_sum"))]
    assert len(grows) > 20
    assert all(after[key] >= before[key] for key in grows)


def test_metrics_does_not_wait_for_a_vllm_that_hangs(engine: Engine, upstream: Upstream) -> None:
    """/metrics asks vLLM nothing, and answers while the scraper is stuck inside its request."""
    upstream.free.clear()
    scraper = Scraper(engine)
    scraper.start()
    assert upstream.asked.wait(60)
    asked_by_scraper = upstream.requests
    found = parsed(exporter.render(engine).decode())
    assert upstream.requests == asked_by_scraper
    assert value(found, "vllm_scrape_success") == 0
    assert value(found, "draft_head_calls_total", **WHO) == 40
    upstream.free.set()
    until(lambda: engine.scrape.success, "the next reading")
    scraper.stop()
    found = parsed(exporter.render(engine).decode())
    assert abs(value(found, "vllm_scrape_timestamp_seconds") - time.time()) < 3600


def test_a_wedged_vllm_is_seen(tmp_path: Path, upstream: Upstream) -> None:
    engine = serving_engine(tmp_path, upstream.port, wedge_seconds=0.001)
    scraper = Scraper(engine)
    upstream.text = vllm_text(running=2, tokens=5)
    assert value(samples(engine, scraper), "vllm_wedged") == 0
    time.sleep(0.002)
    assert value(samples(engine, scraper), "vllm_wedged") == 1
    upstream.text = vllm_text(running=2, tokens=6)
    assert value(samples(engine, scraper), "vllm_wedged") == 0
    upstream.text = vllm_text(running=0, tokens=6)
    time.sleep(0.002)
    assert value(samples(engine, scraper), "vllm_wedged") == 0


def test_a_wedged_engine_is_seen_behind_one_that_works(tmp_path: Path, upstream: Upstream) -> None:
    engine = serving_engine(tmp_path, upstream.port, wedge_seconds=0.001)
    scraper = Scraper(engine)
    wedged = vllm_text(running=2, tokens=5).replace('engine="0"', 'engine="1"')
    for tokens in (10, 20):
        time.sleep(0.002)
        upstream.text = wedged + vllm_text(running=2, tokens=tokens)
        found = samples(engine, scraper)
    assert value(found, "vllm_wedged") == 1


def test_passthrough_gives_vllms_own_metrics_once(tmp_path: Path, upstream: Upstream) -> None:
    own = vllm_text()
    # A family in two pieces, a series twice, and one of our names: each alone makes Prometheus refuse an answer.
    upstream.text = own + "# TYPE vllm:kv_cache_usage_perc gauge\n" + 'vllm:kv_cache_usage_perc{engine="1"} 0.5\n'
    upstream.text += 'vllm:kv_cache_usage_perc{engine="1"} 0.5\n# TYPE radiance_ready gauge\nradiance_ready 7\n'
    engine = serving_engine(tmp_path, upstream.port, passthrough=True)
    found = samples(engine)
    for key, number in parsed(own).items():
        assert found[key] == number, key
    assert found["vllm:kv_cache_usage_perc", (("engine", "1"),)] == 0.5
    assert value(found, "ready") == 1
    types = [line for line in exporter.render(engine).decode().splitlines() if line.startswith("# TYPE ")]
    assert len(types) == len({line.split()[2] for line in types})


def test_passthrough_is_silent_when_vllm_is(tmp_path: Path, upstream: Upstream) -> None:
    engine = serving_engine(tmp_path, upstream.port, passthrough=True)
    scraper = Scraper(engine)
    assert any(name.startswith("vllm:") for name in names(samples(engine, scraper)))
    engine.up = False
    assert not any(name.startswith("vllm:") for name in names(samples(engine, scraper)))


def test_without_passthrough_there_are_only_our_names(engine: Engine) -> None:
    assert all(name.startswith("radiance_") for name in names(samples(engine)))


def test_before_vllm_is_up_it_is_not_asked(engine: Engine) -> None:
    engine.up = False
    assert value(samples(engine), "vllm_scrape_success") == 0
