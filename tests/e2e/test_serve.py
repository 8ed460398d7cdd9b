"""Real `vllm serve` with real drafters: what the 2-bit head may and may not change."""

from __future__ import annotations

import pytest

from tests.e2e.conftest import Runs
from tests.e2e.harness import PROMPTS, TOKENS

pytestmark = pytest.mark.e2e

ALL = ["stock", "fast", "fast-coarse", "fast-random", "dflash", "shadow", "fast-pack", "fast-call", "fast-vocab"]


@pytest.mark.parametrize("name", ALL)
def test_output_never_moves(runs: Runs, name: str) -> None:
    """Token for token what the target says without speculation, whatever the drafter's head proposes."""
    assert [len(t) for t in runs["off"].tokens] == [TOKENS] * len(PROMPTS)
    assert runs[name].tokens == runs["off"].tokens


def test_two_bit_head_is_accepted_as_often_as_the_stock_head(runs: Runs) -> None:
    stock, fast = runs["stock"], runs["fast"]
    assert stock.drafts > 100
    assert (fast.drafts, fast.accepted) == (stock.drafts, stock.accepted)
    assert 0.7 < stock.accepted / (3 * stock.drafts) < 0.99  # a drafter that is always right would prove nothing


def test_without_the_rerank_acceptance_falls(runs: Runs) -> None:
    stock, coarse = runs["stock"], runs["fast-coarse"]
    assert coarse.accepted / coarse.drafts < stock.accepted / stock.drafts - 0.15


def test_a_random_head_is_never_accepted(runs: Runs) -> None:
    random = runs["fast-random"]
    assert random.drafts > 300
    assert random.accepted < 0.02 * random.drafts


def test_fast_head_is_active_and_says_what_it_costs(runs: Runs) -> None:
    fast = runs["fast"]
    assert fast.value("radiance_draft_head_state", state="active") == 1
    assert fast.value("radiance_draft_head_state", state="declined") == 0
    assert fast.value("radiance_draft_head_packed_bytes") == 4096 * (512 // 4 + 2 * 512 // 64)
    assert fast.value("radiance_draft_head_calls_total") >= 3 * fast.drafts  # one call for each draft slot, at least
    assert 0 < fast.value("radiance_draft_head_rescued_rows_total") < fast.value("radiance_draft_head_rows_total")
    assert fast.value("radiance_draft_head_latency_seconds_count") == fast.value("radiance_draft_head_calls_total")
    assert fast.value("radiance_draft_head_lazy_quantisations_total") == 0
    assert "use_local_argmax" not in fast.log  # vLLM would complain if the model had no get_top_tokens


def test_acceptance_histogram_is_exact(runs: Runs) -> None:
    """bucket(le=k) = D - P[k] from vLLM's own counters."""
    fast = runs["fast"]
    drafts = fast.vllm("vllm:spec_decode_num_drafts_total")
    assert fast.value("radiance_accepted_tokens_per_draft_count") == drafts
    assert fast.value("radiance_accepted_tokens_per_draft_sum") == fast.vllm(
        "vllm:spec_decode_num_accepted_tokens_total"
    )
    for position in range(3):
        accepted = fast.vllm("vllm:spec_decode_num_accepted_tokens_per_pos_total", position=str(position))
        bucket = fast.value("radiance_accepted_tokens_per_draft_bucket", le=f"{position}.0")
        assert bucket == drafts - accepted


def test_stock_head_leaves_no_trace_of_a_plugin(runs: Runs) -> None:
    stock = runs["stock"]
    assert "Radiance draft head" not in stock.log
    assert not [f for f in stock.metrics for s in f.samples if s.name == "radiance_draft_head_calls_total"]


def test_dflash_head_that_is_empty_at_load_is_quantised_late(runs: Runs) -> None:
    dflash = runs["dflash"]
    assert dflash.value("radiance_draft_head_state", state="active") == 1
    assert dflash.value("radiance_draft_head_lazy_quantisations_total") == 1
    assert dflash.value("radiance_draft_head_calls_total") > 100
    assert "WAITING" in dflash.log


def test_shadow_serves_stock_and_counts(runs: Runs) -> None:
    shadow, stock = runs["shadow"], runs["stock"]
    assert shadow.value("radiance_draft_head_state", state="shadow") == 1
    assert (shadow.drafts, shadow.accepted) == (stock.drafts, stock.accepted)
    checked = shadow.value("radiance_draft_head_checked_rows_total")
    assert checked > 300
    assert shadow.value("radiance_draft_head_missed_rows_total") <= 0.02 * checked


@pytest.mark.parametrize(("name", "reason"), [("fast-pack", "packing_failed"), ("fast-call", "call_failed")])
def test_a_failure_inside_keeps_the_server_up_on_the_stock_head(runs: Runs, name: str, reason: str) -> None:
    broken, stock = runs[name], runs["stock"]
    assert (broken.drafts, broken.accepted) == (stock.drafts, stock.accepted)
    assert broken.value("radiance_draft_head_state", state="declined") == 1
    assert broken.value("radiance_draft_head_state", state="active") == 0
    assert reason in str(broken.status)
    assert "WARNING" in broken.log
    assert "sabotaged" in broken.log
    assert broken.exit_code == 0


def test_draft_vocabulary_halves_the_head_and_costs_only_acceptance(runs: Runs) -> None:
    """Every other token may be drafted: about half of the drafts can be right, the rest never."""
    half, fast = runs["fast-vocab"], runs["fast"]
    # 2048 even ids and one odd special token, in steps of 64 rows
    assert (
        half.value("radiance_draft_head_packed_bytes") == fast.value("radiance_draft_head_packed_bytes") * 2112 / 4096
    )
    assert 0.2 < (half.accepted / half.drafts) / (fast.accepted / fast.drafts) < 0.7


@pytest.mark.parametrize("name", ["off", "stock", "fast", "dflash"])
def test_stops_cleanly(runs: Runs, name: str) -> None:
    assert runs[name].exit_code == 0
