from __future__ import annotations

import logging

import pytest
import torch

from radiance import quantise, rotation
from radiance.head import DraftHead
from radiance.source import Source
from radiance.status import STOCK_REASONS, HeadState, HeadStatus, Phase

N, VALID, K = 640, 600, 128


def make(weight: torch.Tensor | None = None, **options: object) -> DraftHead:
    torch.manual_seed(0)
    weight = torch.randn(N, K).bfloat16() if weight is None else weight
    chosen = {"n_valid": VALID, "rerank": 32, **options}
    return DraftHead(Source(weight), HeadStatus("lm_head", HeadState.OFF), **chosen)  # type: ignore[arg-type]


def packed(**options: object) -> DraftHead:
    head = make(**options)
    head.pack(Phase.LOAD, late=False)
    assert head.usable(1, capturing=False)
    return head


def stock_argmax(head: DraftHead, x: torch.Tensor) -> torch.Tensor:
    """What the target does: a row in the head's dtype, first of the greatest."""
    return (x.float() @ head.source.weight.float().T).to(x.dtype)[:, :VALID].float().argmax(dim=1)


def test_argmax_agrees_with_the_exact_head() -> None:
    head = packed()
    x = torch.randn(256, K).bfloat16()
    ids, values = head.top_tokens(x)
    agree = ids == stock_argmax(head, x)
    assert agree.float().mean() > 0.97
    assert ids.dtype == torch.int64
    exact = (x.float() @ head.source.weight.float().T).to(x.dtype)
    assert torch.equal(values, exact.float().gather(1, ids[:, None]).squeeze(1))
    head.refresh()
    assert head.status.calls == 1
    assert head.status.rows == 256
    assert 0 < head.status.rescued_rows < 256  # the coarse winner alone would have been wrong that often


def test_with_every_row_reranked_it_is_the_exact_head() -> None:
    head = packed(rerank=VALID)
    x = torch.randn(64, K).bfloat16()
    assert torch.equal(head.top_tokens(x)[0], stock_argmax(head, x))


def test_row_is_exact_on_candidates_and_minus_infinity_elsewhere() -> None:
    head = packed()
    x = torch.randn(5, K).bfloat16()
    row = head.row(x)
    assert row.shape == (5, N)
    assert row.dtype == x.dtype
    assert row.is_contiguous()
    finite = row.isfinite()
    assert finite.sum(dim=1).tolist() == [32] * 5
    assert not finite[:, VALID:].any()
    exact = (x.float() @ head.source.weight.float().T).to(x.dtype)
    assert torch.equal(row[finite], exact[finite])
    assert torch.equal(row.argmax(dim=1), head.top_tokens(x)[0])


def test_top_k_reranks_at_least_four_times_k() -> None:
    head = packed(rerank=8)
    x = torch.randn(32, K).bfloat16()
    ids, values = head.top_k(x, 16)
    assert ids.shape == values.shape == (32, 16)
    exact = (x.float() @ head.source.weight.float().T).to(x.dtype)
    assert torch.equal(values, exact.float().gather(1, ids))
    assert (values[:, :-1] >= values[:, 1:]).all()
    truth = exact[:, :VALID].float().topk(16, dim=1).indices
    found = (ids[:, :, None] == truth[:, None, :]).any(dim=1).float().mean()
    assert found > 0.97  # 0.75 if only 16 rows were reranked


def test_padding_rows_never_win() -> None:
    weight = -torch.rand(N, K).bfloat16()  # every real logit of a positive x is negative, padding would be 0
    weight[VALID:] = 0
    head = make(weight)
    head.pack(Phase.LOAD, late=False)
    assert head.usable(1, capturing=False)
    x = torch.rand(8, K).bfloat16()
    assert (head.top_tokens(x)[0] < VALID).all()
    assert (head.top_k(x, 16)[0] < VALID).all()


def test_more_candidates_than_rows() -> None:
    head = make(torch.randn(64, K).bfloat16(), n_valid=5, rerank=32)
    head.pack(Phase.LOAD, late=False)
    assert head.usable(1, capturing=False)
    x = torch.randn(3, K).bfloat16()
    assert (head.top_tokens(x)[0] < 5).all()
    assert head.row(x).isfinite().sum(dim=1).tolist() == [5] * 3


def test_an_empty_head_waits_and_is_packed_at_its_first_call() -> None:
    weight = torch.zeros(N, K).bfloat16()
    head = make(weight)
    head.pack(Phase.LOAD, late=False)
    assert head.status.state is HeadState.WAITING
    assert not head.usable(1, capturing=False)
    weight.copy_(torch.randn(N, K))
    assert not head.usable(1, capturing=True)
    assert head.status.lazy_fired == 0
    assert stock_calls(head) == {"empty": 1, "capture": 1}
    assert head.usable(1, capturing=False)
    assert head.status.state is HeadState.ACTIVE
    assert (head.status.lazy_fired, head.status.lazy_phase) == (1, Phase.SERVING)
    assert [t.state for t in head.status.history] == [HeadState.WAITING, HeadState.ACTIVE]


def test_memory_that_changed_after_packing_is_packed_again(caplog: pytest.LogCaptureFixture) -> None:
    weight = torch.randn(N, K).bfloat16()
    head = make(weight)
    head.pack(Phase.LOAD, late=False)
    weight.copy_(weight.flip(0).neg())
    assert not head.verify()
    with caplog.at_level(logging.WARNING, "vllm.radiance"):
        assert head.usable(1, capturing=False)
    assert "changed after packing" in caplog.text
    assert head.verify()
    assert head.status.lazy_fired == 1
    x = torch.randn(128, K).bfloat16()
    assert (head.top_tokens(x)[0] == stock_argmax(head, x)).float().mean() > 0.95


def test_a_failure_while_packing_declines(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    def fail(*_: object, **__: object) -> None:
        raise RuntimeError("out of memory")

    monkeypatch.setattr(quantise, "quantise", fail)
    head = make()
    with caplog.at_level(logging.WARNING, "vllm.radiance"):
        head.pack(Phase.LOAD, late=False)
    assert (head.status.state, head.status.reason) == (HeadState.DECLINED, "packing_failed")
    assert "out of memory" in caplog.text
    assert not head.usable(1, capturing=False)
    assert stock_calls(head) == {"packing_failed": 1}


def test_captured_graphs_keep_the_packed_copy_of_a_head_that_declines() -> None:
    for captured in (False, True):
        head = packed()
        assert head.usable(1, capturing=captured)
        head.decline("call_failed")
        assert (head._kept is not None) == captured
        assert (head.status.packed_bytes > 0) == captured
        assert not head.usable(1, capturing=False)


def test_a_failing_look_at_the_head_declines(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise RuntimeError("out of memory")

    head = make()
    monkeypatch.setattr(Source, "gather", fail)
    head.pack(Phase.LOAD, late=False)
    assert (head.status.state, head.status.reason) == (HeadState.DECLINED, "packing_failed")


def test_shadow_counts_and_finds_no_fault_in_a_right_head() -> None:
    head = packed(shadow=True, rerank=64)
    assert head.status.state is HeadState.SHADOW
    x = torch.randn(200, K).bfloat16()
    head.compare(x, x @ head.source.weight.T)
    head.refresh()
    assert head.status.checked_rows == 200
    assert head.status.missed_rows <= head.status.disagreed_rows <= 10
    wrong = torch.zeros(200, N)
    wrong[:, 0] = 1.0  # a "stock" row whose winner is always token 0
    head.compare(x, wrong)
    head.refresh()
    assert head.status.checked_rows == 400
    assert head.status.disagreed_rows > 180


def test_sampled_checks_come_one_in_n_calls() -> None:
    head = packed(shadow_sample=3)
    x = torch.randn(1, K).bfloat16()
    due = []
    for _ in range(6):
        due.append(head.due_for_check(capturing=False))
        assert not head.due_for_check(capturing=True)  # neither due nor counted
        head.top_tokens(x)
    assert due == [False, False, True, False, False, True]


def stock_calls(head: DraftHead) -> dict[str, int]:
    head.refresh()
    assert set(STOCK_REASONS) <= set(head.status.stock_calls), "series that appear with their first call hide it"
    return {reason: count for reason, count in head.status.stock_calls.items() if count}


def test_above_the_crossover_the_stock_head_answers() -> None:
    head = packed()
    head.crossover = 4
    assert head.usable(4, capturing=False)
    assert not head.usable(5, capturing=False)
    assert stock_calls(head) == {"rows": 1}


def test_latency_histogram_counts_each_call() -> None:
    head = packed()
    for _ in range(4):
        head.top_tokens(torch.randn(1, K).bfloat16())
    head.refresh()
    latency = head.status.latency
    assert latency.clock == "host"
    assert sum(latency.counts) == head.status.calls == 4
    held = [
        edge for edge, count in zip([*latency.buckets, float("inf")], latency.counts, strict=True) for _ in range(count)
    ]
    assert 0 < latency.sum_seconds <= sum(held)


@pytest.mark.parametrize("vocab", [None, torch.arange(0, VALID, 2, dtype=torch.int32)])
def test_full_row_has_a_finite_value_for_every_draftable_token(vocab: torch.Tensor | None) -> None:
    """Exact where reranked, coarse plus what the codes left out elsewhere: the log-partition comes out right."""
    weight = (torch.randn(N, K) + 3 * torch.randn(K)).bfloat16()  # a mean row that no code holds
    head = make(weight, vocab=vocab)
    head.pack(Phase.LOAD, late=False)
    assert head.usable(1, capturing=False)
    x = torch.randn(40, K).bfloat16()
    row, ids, values = head.full_row(x, 4)
    assert row.shape == (40, N)
    assert row.dtype == x.dtype
    drafted = torch.arange(VALID) if vocab is None else vocab.long()
    others = torch.ones(N, dtype=torch.bool)
    others[drafted] = False
    assert row[:, drafted].isfinite().all()
    assert (row[:, others] == -torch.inf).all()
    exact = (x.float() @ weight.float().T).to(x.dtype).float()
    assert torch.equal(values, exact.gather(1, ids))
    assert torch.equal(row.float().gather(1, ids), values)
    off = (row.float() - exact)[:, drafted].square().mean().sqrt()
    assert 0 < off < 0.4 * (exact - exact.mean(1, keepdim=True))[:, drafted].square().mean().sqrt()


def addresses(head: DraftHead) -> list[int]:
    """What a captured graph of this head holds."""
    done = head._packed()
    turn = done.plan.rotation
    held = [done.packed.codes, done.packed.half_steps, done.packed.units, done.plan.mean, turn.x_scale, turn.w_scale]
    return [tensor.data_ptr() for tensor in held]


@pytest.mark.parametrize("slept", [False, True])
@pytest.mark.parametrize("late", [False, True])
def test_weights_that_were_replaced_are_packed_again_in_place(slept: bool, late: bool) -> None:
    """`slept`: a level-2 sleep threw away everything that was allocated while loading; `late`: packed at the first call,
    inside vLLM's inference mode."""
    weight = torch.randn(N, K).bfloat16()
    head = make(torch.zeros(N, K).bfloat16() if late else weight)
    head.pack(Phase.LOAD, late=False)
    if late:
        head.source.weight.copy_(weight)
        weight = head.source.weight
    with torch.inference_mode():
        assert not head.usable(1, capturing=True)  # nothing verified yet: no graph may hold it
        assert head.usable(1, capturing=False)
        assert head.usable(1, capturing=True)
    before = addresses(head)
    head.follow_weights()
    assert head.status.repacked == 0
    if slept:
        done = head._packed()
        garbage = [
            done.packed.codes,
            done.packed.half_steps,
            done.packed.units,
            done.plan.mean,
            done.plan.rotation.x_scale,
        ]
        for tensor in [*garbage, head._sample_ids, *(tensor for tensor, _ in rotation._constants.values())]:
            tensor.fill_(3)
    weight.copy_(weight.flip(0).neg())
    head.follow_weights()
    assert head.status.repacked == 1
    assert head.status.state is HeadState.ACTIVE
    assert addresses(head) == before
    assert head.usable(1, capturing=False)
    assert head.status.lazy_fired == int(late)
    x = torch.randn(128, K).bfloat16()
    assert (head.top_tokens(x)[0] == stock_argmax(head, x)).float().mean() > 0.95


@pytest.mark.parametrize("lost", ["codes", "half_steps", "mean", "x_scale"])
def test_a_copy_that_a_sleep_took_is_packed_again_though_the_weights_are_the_same(lost: str) -> None:
    """Even if the rows that were compared survived: what a page holds after a deep sleep, nobody promises."""
    head = packed()
    done = head._packed()
    before = addresses(head)
    kept = {"codes": done.packed.codes, "half_steps": done.packed.half_steps, "mean": done.plan.mean,
            "x_scale": done.plan.rotation.x_scale}[lost]  # fmt: skip
    good = kept.clone()
    kept.zero_()
    head.follow_weights()
    assert head.status.repacked == 1
    assert torch.equal(kept, good)
    assert addresses(head) == before
    head.follow_weights()
    assert head.status.repacked == 1


def test_weights_that_a_sleep_took_are_waited_for() -> None:
    """Level 2, then a reload of the target alone: the drafter's own head is garbage until its weights come too."""
    head = packed()
    assert head.usable(1, capturing=True)
    before, weight, codes = addresses(head), head.source.weight.clone(), head._packed().packed.codes.clone()
    head.source.weight[5, 6] = torch.nan  # as random bytes would have somewhere
    head._packed().packed.codes.zero_()
    head.follow_weights(woken=True)
    assert head.status.state is HeadState.ACTIVE  # nothing is known yet
    head.follow_weights()
    assert (head.status.state, head.status.reason) == (HeadState.WAITING, "not_finite")
    assert not head.usable(1, capturing=False)
    head.source.weight.copy_(weight)
    head.follow_weights()
    assert head.status.state is HeadState.ACTIVE
    assert addresses(head) == before
    assert torch.equal(head._packed().packed.codes, codes)
    assert head.usable(1, capturing=False)


@pytest.mark.parametrize("by", ["follow", "call"])
def test_weights_that_went_and_came_back_as_they_were(by: str) -> None:
    head = packed()
    weight = head.source.weight.clone()
    head.source.weight.zero_()
    head.follow_weights()
    assert head.status.state is HeadState.WAITING
    head.source.weight.copy_(weight)
    if by == "follow":  # an engine that replays graphs makes no call that could mend it
        head.follow_weights()
        assert head.status.state is HeadState.ACTIVE
    assert head.usable(1, capturing=False)
    assert head.status.state is HeadState.ACTIVE


def test_a_copy_that_a_sleep_took_is_packed_when_the_weights_are_awake_again() -> None:
    """vLLM itself brought them back (sleep_preserve_parameter_names): no reload follows."""
    head = packed()
    codes = head._packed().packed.codes.clone()
    head._packed().packed.codes.zero_()
    head.follow_weights(woken=True)
    assert torch.equal(head._packed().packed.codes, codes)
    assert head.status.repacked == 1


def test_rows_that_were_replaced_between_those_that_are_sampled_are_packed_again() -> None:
    head = packed()
    free = next(row for row in range(VALID) if row not in head._sample_ids.tolist())
    head.source.weight[free] = -head.source.weight[free]
    assert head.verify()  # the sample does not see it
    head.follow_weights()
    assert head.status.repacked == 1


def test_memory_that_changes_under_a_captured_graph_is_packed_in_place() -> None:
    """Without a word from vLLM, after a reload: the graph goes on reading where it did."""
    weight = torch.randn(N, K).bfloat16()
    head = make(weight)
    head.pack(Phase.LOAD, late=False)
    assert head.usable(1, capturing=False)
    assert head.usable(1, capturing=True)
    before = addresses(head)
    weight.copy_(weight.flip(0).neg())
    head.follow_weights()
    weight.copy_(weight.flip(1))
    assert head.usable(1, capturing=False)
    assert addresses(head) == before
    weight.zero_()
    head.follow_weights()
    assert head.status.state is HeadState.WAITING
    assert not head.usable(1, capturing=False)


def test_logits_are_compared_in_the_dtype_of_the_targets_head() -> None:
    """head_dtype float32: with bf16 rounding some winners would be chosen among ties that are none."""
    head = packed(rerank=VALID, round_to=torch.float32)
    x = torch.randn(512, K).bfloat16()
    exact = (x.float() @ head.source.weight.float().T)[:, :VALID]
    assert torch.equal(head.top_tokens(x)[0], exact.argmax(1))
    assert head.row(x).dtype == torch.float32
    assert (packed(rerank=VALID).top_tokens(x)[0] != exact.argmax(1)).any()


def test_a_head_that_was_never_packed_follows_nothing() -> None:
    head = make(torch.zeros(N, K).bfloat16())
    head.pack(Phase.LOAD, late=False)
    head.follow_weights()
    assert (head.status.state, head.status.repacked) == (HeadState.WAITING, 0)
