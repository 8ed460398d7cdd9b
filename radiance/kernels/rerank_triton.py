"""Exact logits of the candidates and the best of them, portable. Two launches: a program a candidate, a program a row."""

# mypy: disable-error-code="no-untyped-def,untyped-decorator"
# Triton gives a kernel's arguments no types that a checker could use.
from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
import triton
import triton.language as tl

from radiance.source import Source

if TYPE_CHECKING:
    from radiance.rerank import Answer


@triton.jit
def score_candidates(
    weight, w_stride, scale, x, x_stride, ids, values, r,
    K: tl.constexpr, BLOCK_K: tl.constexpr, IS_E4M3: tl.constexpr, ROUND: tl.constexpr,
):  # fmt: skip
    """values fp32 [m, r]: weight[id] . x in fp32, -inf where id is -1. e4m3 comes as its bytes and is decoded by bits."""
    row = tl.program_id(1).to(tl.int64)
    slot = row * r + tl.program_id(0)
    token = tl.load(ids + slot).to(tl.int64)
    safe = tl.maximum(token, 0)
    total = tl.zeros((BLOCK_K,), tl.float32)
    for start in range(0, K, BLOCK_K):
        at = start + tl.arange(0, BLOCK_K)
        w = tl.load(weight + safe * w_stride + at, mask=at < K, other=0)
        if IS_E4M3:
            bits = w.to(tl.int32) & 255
            bits = ((bits & 128) << 24) | ((bits & 127) << 20)
            decoded = bits.to(tl.float32, bitcast=True) * 1.329227995784916e36  # 2^120: the exponents' biases
        else:
            decoded = w.to(tl.float32)
        total += decoded * tl.load(x + row * x_stride + at, mask=at < K, other=0.0).to(tl.float32)
    value = tl.sum(total, 0)
    if IS_E4M3:
        value *= tl.load(scale + safe)
    if ROUND == 1:
        value = value.to(tl.bfloat16).to(tl.float32)
    if ROUND == 2:
        value = value.to(tl.float16).to(tl.float32)
    tl.store(values + slot, tl.where(token < 0, float("-inf"), value))


@triton.jit
def best_of_row(
    ids,
    values,
    out_ids,
    best_ids,
    best_values,
    counters,
    r,
    SIZE: tl.constexpr,
    ROWS: tl.constexpr,
    COUNT: tl.constexpr,
):
    """The greatest value of each row, NaN above all as in torch.argmax, ties to the lowest id."""
    row = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, SIZE)
    token = tl.load(ids + row * r + at, mask=at < r, other=-1)
    value = tl.load(values + row * r + at, mask=at < r, other=float("-inf"))
    odd = (value != value) & (token >= 0)
    any_odd = tl.max(odd.to(tl.int32), 0) > 0
    top = tl.max(tl.where(value != value, float("-inf"), value), 0)
    tied = tl.where(any_odd, odd, (value == top) & (token >= 0))
    winner = tl.min(tl.where(tied, token, 2147483647), 0)
    tl.store(best_ids + row, winner.to(tl.int64))
    tl.store(best_values + row, tl.where(any_odd, float("nan"), top))
    if ROWS:
        tl.store(out_ids + row * r + at, token.to(tl.int64), mask=at < r)
    if COUNT:
        rescued = (winner != tl.load(ids + row * r)).to(tl.int64)
        tl.atomic_add(counters, (row == 0).to(tl.int64))
        tl.atomic_add(counters + 1, tl.full((), 1, tl.int64))
        tl.atomic_add(counters + 2, rescued)


def score(
    source: Source, x: torch.Tensor, ids: torch.Tensor, answer: Answer, out_ids: torch.Tensor, out_values: torch.Tensor,
    round_to: torch.dtype, counters: torch.Tensor | None, rows: bool,
) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
    """As radiance.rerank.score; any weight whose rows are contiguous."""
    m, r = ids.shape
    k = source.k
    values = out_values if rows else torch.empty(m, r, dtype=torch.float32, device=ids.device)
    e4m3 = source.weight.dtype == torch.float8_e4m3fn
    weight = source.weight.view(torch.uint8) if e4m3 else source.weight
    code = {torch.float32: 0, torch.bfloat16: 1, torch.float16: 2}[round_to]
    grid: Any = (r, m)
    score_candidates[grid](
        weight, weight.stride(0), source.scale if source.scale is not None else values, x, x.stride(0), ids, values, r,
        K=k, BLOCK_K=min(8192, triton.next_power_of_2(k)), IS_E4M3=e4m3, ROUND=code, num_warps=4,
    )  # fmt: skip
    per_row: Any = (m,)
    best_of_row[per_row](
        ids, values, out_ids, answer.ids, answer.values, counters if counters is not None else answer.ids, r,
        SIZE=triton.next_power_of_2(r), ROWS=rows, COUNT=counters is not None, num_warps=4,
    )  # fmt: skip
    return out_ids, out_values
