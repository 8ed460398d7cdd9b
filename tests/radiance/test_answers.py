"""Who answers a call, with a LogitsProcessor written after vLLM's for the purpose: what the CPU's V1 runner never asks for
(top-k, log-probabilities, models without get_top_tokens) and how two ranks put their halves together. Real vLLM: tests/e2e.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch

from radiance.head import DraftHead
from radiance.hook import answers
from radiance.hook.module import RadianceLMHead
from radiance.source import Source
from radiance.status import HeadState, HeadStatus, Phase

N, K, M = 1024, 128, 24


class Ranks:
    """all_gather among threads: each brings its part and takes all of them, in the order of ranks."""

    def __init__(self, size: int) -> None:
        self.barrier = threading.Barrier(size)
        self.parts: dict[int, torch.Tensor] = {}
        self.local = threading.local()

    def all_gather(self, part: torch.Tensor, dim: int = -1) -> torch.Tensor:
        self.parts[self.local.rank] = part
        self.barrier.wait(30)
        whole = torch.cat([self.parts[rank] for rank in sorted(self.parts)], dim=dim)
        self.barrier.wait(30)
        return whole

    def run(self, calls: list[Callable[[], Any]]) -> list[Any]:
        def one(rank: int) -> Any:
            self.local.rank = rank
            return calls[rank]()

        with ThreadPoolExecutor(len(calls)) as pool:
            return list(pool.map(one, range(len(calls))))


@pytest.fixture
def ranks(monkeypatch: pytest.MonkeyPatch) -> Ranks:
    group = Ranks(2)
    module = ModuleType("vllm.distributed")
    module.tensor_model_parallel_all_gather = group.all_gather  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "vllm", ModuleType("vllm"))
    monkeypatch.setitem(sys.modules, "vllm.distributed", module)
    return group


class Head:
    def __init__(self, weight: torch.Tensor, start: int = 0, tp_size: int = 1) -> None:
        self.weight, self.tp_size = weight, tp_size
        self.shard_indices = SimpleNamespace(org_vocab_start_index=start)


class Ours(RadianceLMHead, torch.nn.Module):
    def __init__(self, source: Head, draft: DraftHead) -> None:
        super().__init__()
        self.source, self.radiance = source, draft
        self.tp_size, self.shard_indices, self.wants_full_row = source.tp_size, source.shard_indices, False


def ours(source: Head) -> Ours:
    draft = DraftHead(
        Source(source.weight),
        HeadStatus("lm_head", HeadState.OFF),
        n_valid=len(source.weight),
        rerank=64,
        dtype=torch.float32,
    )
    draft.pack(Phase.LOAD, late=False)
    assert draft.usable(1, capturing=False)
    return Ours(source, draft)


def make_processor() -> Any:
    class LogitsProcessor:
        """The stock path: one local row, then what the caller wants of it."""

        scale, soft_cap, head_dtype = 0.5, 30.0, None

        def forward(self, head: Any, x: torch.Tensor, bias: Any = None) -> torch.Tensor:
            return self.capped(self._apply_head(head, x, bias))

        def _apply_head(self, head: Any, x: torch.Tensor, bias: Any) -> torch.Tensor:
            return (x.float() @ head.weight.float().T).to(x.dtype)

        def capped(self, row: torch.Tensor) -> torch.Tensor:
            return (row / self.soft_cap).tanh() * self.soft_cap * self.scale

        def get_top_tokens(self, head: Any, x: torch.Tensor, bias: Any = None) -> torch.Tensor:
            return self.capped(self._apply_head(head, x, bias)).argmax(-1) + head.shard_indices.org_vocab_start_index

        def get_top_k_tokens(
            self, head: Any, x: torch.Tensor, k: int, bias: Any = None, *, return_log_probs: bool = False
        ) -> Any:
            row = self._apply_head(head, x, bias).float()
            values, ids = row.topk(k)
            if return_log_probs:
                return ids, self.capped(values) - self.capped(row).logsumexp(-1, keepdim=True)
            values = values * self.scale
            return ids, (values / self.soft_cap).tanh() * self.soft_cap

    module = ModuleType("logits_processor")
    module.LogitsProcessor = LogitsProcessor  # type: ignore[attr-defined]
    answers.wrap(module)
    return LogitsProcessor()


@pytest.fixture
def weight() -> torch.Tensor:
    torch.manual_seed(0)
    return (torch.randn(N, K) / 4).bfloat16()


@pytest.fixture
def x() -> torch.Tensor:
    """fp32, so that no two logits tie."""
    torch.manual_seed(1)
    return torch.randn(M, K)


@pytest.mark.parametrize("log_probs", [False, True])
def test_top_k_has_the_values_of_the_stock_head(weight: torch.Tensor, x: torch.Tensor, log_probs: bool) -> None:
    processor, stock = make_processor(), Head(weight)
    ids, values = processor.get_top_k_tokens(ours(stock), x, 4, return_log_probs=log_probs)
    stock_ids, stock_values = processor.get_top_k_tokens(stock, x, 4, return_log_probs=log_probs)
    assert torch.equal(ids, stock_ids)
    # the log-partition is a sum over coarse values; all else is exact
    assert (values - stock_values).abs().max() < (0.15 if log_probs else 1e-5)


@pytest.mark.parametrize("broken", [False, True])
def test_two_ranks_find_what_one_head_finds(weight: torch.Tensor, x: torch.Tensor, ranks: Ranks, broken: bool) -> None:
    """`broken`: the 2-bit path of rank 1 raises; it answers with its stock head, in the same collectives."""
    processor, half = make_processor(), N // 2
    shards = [ours(Head(weight[:half], 0, 2)), ours(Head(weight[half:], half, 2))]
    whole = Head(weight)

    def stock_pairs(head: Head) -> torch.Tensor:
        """vLLM's own reduction of a stock shard."""
        row = processor.capped(processor._apply_head(head, x, None))
        best, ids = row.max(-1)
        pairs = ranks.all_gather(
            torch.stack([best.float(), (ids + head.shard_indices.org_vocab_start_index).float()], -1), -1
        )
        pairs = pairs.view(M, 2, 2)
        return pairs[:, :, 1].gather(-1, pairs[:, :, 0].argmax(-1, keepdim=True)).squeeze(-1).long()

    if broken:
        shards[1].radiance.decline("call_failed")
        told = ranks.run([lambda: processor.get_top_tokens(shards[0], x), lambda: stock_pairs(shards[1].source)])
    else:
        told = ranks.run([partial(processor.get_top_tokens, shard, x) for shard in shards])
    assert torch.equal(told[0], told[1])
    assert torch.equal(told[0], processor.get_top_tokens(whole, x))


@pytest.mark.parametrize("log_probs", [False, True])
def test_two_ranks_find_the_top_k_of_one_head(
    weight: torch.Tensor, x: torch.Tensor, ranks: Ranks, log_probs: bool
) -> None:
    processor, half = make_processor(), N // 2
    shards = [ours(Head(weight[:half], 0, 2)), ours(Head(weight[half:], half, 2))]
    told = ranks.run([partial(processor.get_top_k_tokens, shard, x, 4, return_log_probs=log_probs) for shard in shards])
    ids, values = processor.get_top_k_tokens(Head(weight), x, 4, return_log_probs=log_probs)
    for one in told:
        assert torch.equal(one[0], ids)
        assert (one[1] - values).abs().max() < (0.15 if log_probs else 1e-5)


class Model(torch.nn.Module):
    """A drafter without get_top_tokens; `after` is what it does to its logits."""

    def __init__(self, head: Ours, after: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.lm_head, self.processor, self.after = head, make_processor(), after

    def compute_logits(self, hidden: torch.Tensor) -> torch.Tensor:
        return self.after(self.processor.forward(self.lm_head, hidden * 2))


def test_ids_through_the_models_own_compute_logits(weight: torch.Tensor, x: torch.Tensor) -> None:
    model = Model(ours(Head(weight)), lambda logits: logits)
    row = model.compute_logits(x)
    assert answers.bind_top_tokens(model)
    calls = model.lm_head.radiance.status.calls
    ids = model.get_top_tokens(x)
    assert ids.dtype == torch.int64
    assert torch.equal(ids, row.argmax(-1))
    model.lm_head.radiance.refresh()
    assert model.lm_head.radiance.status.calls > calls
    assert torch.equal(model.compute_logits(x), row)  # outside, it is a row as ever


@pytest.mark.parametrize("after", [lambda logits: logits * 2, lambda logits: logits[:, :512], torch.clone])
def test_a_model_that_works_on_its_logits_is_served_rows(
    weight: torch.Tensor, after: Callable[[torch.Tensor], torch.Tensor]
) -> None:
    model = Model(ours(Head(weight)), after)
    assert not answers.bind_top_tokens(model)
    assert not hasattr(model, "get_top_tokens")


def test_a_layer_that_kept_its_stock_head_is_asked_for_ids_too(weight: torch.Tensor, x: torch.Tensor) -> None:
    """On another rank it may be ours: pairs and rows must not meet in one collective."""
    model = Model(ours(Head(weight)), lambda logits: logits)
    assert answers.bind_top_tokens(model)
    asked = []
    original = type(model.processor).get_top_tokens
    model.processor.get_top_tokens = lambda *a: asked.append(a) or original(model.processor, *a)
    source = model.lm_head.source
    del model.lm_head
    model.lm_head = source
    ids = model.get_top_tokens(x)
    assert len(asked) == 1
    assert torch.equal(ids, model.processor.get_top_tokens(source, x * 2))
