"""What /metrics says of workers, heads and acceptance, from real status files."""

from __future__ import annotations

from pathlib import Path

import pytest
from figures import (
    BUCKETS,
    WHO,
    Upstream,
    head,
    make_engine,
    names,
    put,
    samples,
    value,
)
from prometheus_client import CollectorRegistry
from prometheus_client.parser import text_string_to_metric_families

from launcher import exporter, metrics
from launcher.engine import Engine
from launcher.scraper import Scraper
from radiance import status
from radiance.status import HeadState, HeadStatus, Latency


def test_acceptance_is_exact(engine: Engine) -> None:
    found = samples(engine)
    wanted = {"0.0": 14, "1.0": 20, "2.0": 28, "+Inf": 208}
    assert {le: value(found, "accepted_tokens_per_draft_bucket", le=le) for le in wanted} == wanted
    assert value(found, "accepted_tokens_per_draft_sum") == 562
    assert value(found, "accepted_tokens_per_draft_count") == 208
    assert value(found, "drafts_total") == 208
    assert value(found, "draft_tokens_total") == 624
    assert value(found, "accepted_tokens_total") == 562
    assert [value(found, "accepted_tokens_position_total", position=k) for k in "012"] == [194, 188, 180]
    assert value(found, "expected_accepted_tokens_per_draft_min") == 2.5
    assert value(found, "vllm_scrape_success") == 1


def test_the_head_as_its_worker_reported_it(engine: Engine) -> None:
    found, who = samples(engine), WHO
    plain = {
        "draft_head_packed_bytes": 10_000_000,
        "draft_head_peak_bytes": 20_000_000,
        "draft_head_quantise_seconds": 1.5,
        "draft_head_rerank_rows": 32,
        "draft_head_calls_total": 40,
        "draft_head_rows_total": 50,
        "draft_head_rescued_rows_total": 6,
        "draft_head_checked_rows_total": 30,
        "draft_head_disagreed_rows_total": 2,
        "draft_head_missed_rows_total": 1,
        "draft_head_repacked_total": 2,
        "draft_head_state_timestamp_seconds": 111,
        "draft_head_lazy_quantisation_timestamp_seconds": 222,
    }
    assert {name: value(found, name, **who) for name in plain} == plain
    fired = {phase: value(found, "draft_head_lazy_quantisations_total", phase=phase, **who) for phase in status.Phase}
    assert fired == {"load": 0, "profile": 1, "capture": 0, "serving": 0}
    assert value(found, "draft_head_stock_calls_total", reason="rows", **who) == 3
    assert value(found, "draft_head_stock_calls_total", reason="dtype", **who) == 4
    assert value(found, "worker_heartbeat_timestamp_seconds", engine="0", rank="0") == 333


def test_latency_is_cumulative_and_in_seconds(engine: Engine) -> None:
    found, who = samples(engine), {**WHO, "clock": "host"}
    wanted = {"2e-05": 1, "0.001": 31, "0.005": 38, "+Inf": 40}
    assert {le: value(found, "draft_head_latency_seconds_bucket", le=le, **who) for le in wanted} == wanted
    assert value(found, "draft_head_latency_seconds_sum", **who) == 0.25
    assert value(found, "draft_head_latency_seconds_count", **who) == 40


@pytest.mark.parametrize("state", list(HeadState))
def test_the_state_is_a_set_with_one_1_and_its_reason(engine: Engine, state: HeadState) -> None:
    reason = "no-drafter" if state is HeadState.DECLINED else ""
    put(engine, head(state=state, reason=reason))
    states = {dict(labels)["state"]: (number, dict(labels)["reason"]) for (name, labels), number in samples(engine).items()
              if name == "radiance_draft_head_state"}  # fmt: skip
    assert states == {str(each): (float(each is state), reason if each is state else "") for each in HeadState}


def test_what_a_head_has_not_done_yet_is_0_and_no_time(engine: Engine) -> None:
    fresh = HeadStatus("lm_head", HeadState.ACTIVE).stock_calls
    put(engine, head(latency=Latency(BUCKETS, [0, 0, 0, 0]), lazy_fired=0, calls=0, stock_calls=fresh))
    found = samples(engine)
    for reason in status.STOCK_REASONS:
        assert value(found, "draft_head_stock_calls_total", reason=reason, **WHO) == 0
    assert value(found, "draft_head_latency_seconds_count", clock="host", **WHO) == 0
    assert value(found, "draft_head_calls_total", **WHO) == 0
    assert "radiance_draft_head_lazy_quantisation_timestamp_seconds" not in names(found)


def test_with_the_head_off_the_state_is_off_and_there_is_no_latency(tmp_path: Path) -> None:
    found = samples(make_engine(tmp_path, fast_draft="disabled"))
    assert value(found, "draft_head_state", engine="", rank="", head="", state="off", reason="") == 1
    assert value(found, "draft_head_state", engine="", rank="", head="", state="active", reason="") == 0
    assert value(found, "fast_draft_mode", mode="off") == 1
    assert value(found, "draft_head_verdict", verdict="ok") == 1
    assert "radiance_draft_head_latency_seconds_count" not in names(found)


def test_series_exist_from_the_start(tmp_path: Path) -> None:
    """rate() needs the 0: a counter that first appears with a value has no increase."""
    found = samples(make_engine(tmp_path))
    assert value(found, "drafts_total") == 0
    assert [value(found, "accepted_tokens_position_total", position=k) for k in "012"] == [0, 0, 0]
    assert {le: value(found, "accepted_tokens_per_draft_bucket", le=le) for le in ("0.0", "1.0", "2.0", "+Inf")} == dict.fromkeys(
        ("0.0", "1.0", "2.0", "+Inf"), 0
    )  # fmt: skip
    zero = ("vllm_up", "vllm_restarts_total", "vllm_scrape_success", "vllm_wedged", "ready", "status_file_errors")
    assert {name: value(found, name) for name in zero} == dict.fromkeys(zero, 0)
    assert value(found, "speculation_configured") == 1
    assert value(found, "startup_budget_seconds") == 600
    assert value(found, "draft_head_verdict", verdict="pending") == 1


def test_a_profile_without_speculation_has_no_acceptance(tmp_path: Path) -> None:
    found = samples(make_engine(tmp_path, speculative=None, fast_draft="disabled"))
    assert value(found, "speculation_configured") == 0
    assert "radiance_drafts_total" not in names(found)


def test_the_thresholds_of_the_profile_are_gauges(engine: Engine, tmp_path: Path) -> None:
    found = samples(engine)
    assert value(found, "expected_accepted_tokens_per_draft_min") == 2.5
    assert value(found, "expected_draft_head_latency_seconds_max") == 0.0005
    (tmp_path / "other").mkdir()
    without = names(samples(make_engine(tmp_path / "other")))
    assert not [name for name in without if name.startswith("radiance_expected_")]


def test_a_head_that_is_quantised_again_keeps_the_phase_of_the_first_time(engine: Engine) -> None:
    samples(engine)
    put(engine, head(lazy_fired=3, lazy_phase="serving"))
    found = samples(engine)
    fired = {phase: value(found, "draft_head_lazy_quantisations_total", phase=phase, **WHO) for phase in status.Phase}
    assert fired == {"load": 0, "profile": 1, "capture": 0, "serving": 2}


def test_one_rank_in_two_engines_does_not_collapse(engine: Engine) -> None:
    put(engine, head(calls=7), pid=200, heartbeat=444.0)
    found = samples(engine)
    assert value(found, "draft_head_calls_total", **WHO) == 40
    assert value(found, "draft_head_calls_total", **{**WHO, "engine": "1"}) == 7
    beats = [value(found, "worker_heartbeat_timestamp_seconds", engine=n, rank="0") for n in "01"]
    assert beats == [333, 444]


def test_a_worker_says_which_engine_it_is_of(engine: Engine) -> None:
    """Data parallel: whoever writes first, the label is the engine's own index."""
    put(engine, head(calls=7), pid=300, heartbeat=444.0, engine=3)
    put(engine, head(calls=9), pid=200, heartbeat=445.0, engine=1)
    found = samples(engine)
    calls = {number: value(found, "draft_head_calls_total", **{**WHO, "engine": number}) for number in "013"}
    assert calls == {"0": 40, "1": 9, "3": 7}


def test_a_worker_whose_file_is_torn_or_gone_keeps_its_counts(engine: Engine) -> None:
    path = put(engine, head())
    samples(engine)
    path.write_text('{"schema": 1, "pi')
    found = samples(engine)
    assert value(found, "status_file_errors") == 1
    assert value(found, "draft_head_calls_total", **WHO) == 40
    path.unlink()
    assert value(samples(engine), "draft_head_calls_total", **WHO) == 40


def test_a_histogram_that_does_not_fit_is_an_error_and_harms_nothing(engine: Engine) -> None:
    put(engine, head(latency=Latency(BUCKETS, [1, 2])), rank=1, pid=7)
    found = samples(engine)
    assert value(found, "status_file_errors") == 1
    assert value(found, "draft_head_calls_total", **WHO) == 40


def test_the_exit_code_shows_after_the_end_only(engine: Engine) -> None:
    assert "radiance_vllm_exit_code" not in names(samples(engine))
    engine.exit_code = 137
    assert value(samples(engine), "vllm_exit_code") == 137


def test_names_follow_the_rules(engine: Engine) -> None:
    engine.exit_code = 0
    text = exporter.render(engine).decode()
    for family in text_string_to_metric_families(text):
        assert family.name.startswith("radiance_")
        assert ":" not in family.name
        assert family.documentation.endswith("."), family.name
        assert not family.name.endswith(("_ms", "_us", "_percent", "_ratio")), family.name
        for sample in family.samples:
            assert (family.type == "counter") == sample.name.endswith("_total"), sample.name


def test_every_declared_metric_is_emitted_and_no_other(engine: Engine) -> None:
    engine.exit_code = 0
    Scraper(engine).once()
    families = list(text_string_to_metric_families(exporter.render(engine).decode()))
    seen = {f.name: (f.type, f.documentation) for f in families if f.samples}
    assert seen == {spec.family: (spec.kind, spec.help) for spec in metrics.SPECS.values()}
    for family in families:
        labels = {name for sample in family.samples for name in sample.labels} - {"le"}
        assert labels == set(metrics.SPECS[family.name.removeprefix("radiance_")].labels), family.name


def test_registering_does_not_scrape_and_two_registries_can_live_side_by_side(
    engine: Engine, upstream: Upstream
) -> None:
    upstream.shutdown()
    upstream.server_close()
    registries = [CollectorRegistry(), CollectorRegistry()]
    for registry in registries:
        exporter.RadianceCollector(engine, registry=registry)
        assert registry.get_sample_value("radiance_ready") == 1
