"""The exact top r by (coarse value descending, id ascending), portable. Three launches: blocks, tokens, order.

Every key is one int32: the value's 16 sortable bits above, the complement of its place below. So keys are unique, ties go to
the lowest id, and there is a threshold with exactly r keys not below it. Why r blocks suffice: select.cu.
"""

# mypy: disable-error-code="no-untyped-def,untyped-decorator"
# Triton gives a kernel's arguments no types that a checker could use.
from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl


@triton.jit
def key_of(value, place):
    """bf16 values and places below 65536 -> int32 in the order wanted."""
    bits = value.to(tl.int16, bitcast=True).to(tl.int32)
    bits = tl.where(bits == -32768, 0, bits)  # -0 sorts as 0
    ordered = tl.where(bits >= 0, bits, -32769 - bits)
    return ordered * 65536 + (65535 - place)


@triton.jit
def threshold_of(key, wanted):
    """A t with exactly `wanted` keys >= t. Keys not in play are the least int32; at least `wanted` >= 1 are in play.

    A step is a sum over the whole block, so few steps matter: down from the greatest key by growing strides, then bisection
    that ends with the first t that fits (about 12 steps on normal values at r = 32 instead of 32)."""
    high = tl.max(key, 0).to(tl.int64) + 1  # count(key >= high) < wanted <= count(key >= low), once n says so
    stride = tl.full((), 1 << 21, tl.int64)  # 32 steps of bf16
    low = tl.maximum(high - stride, -2147483648)
    n = tl.sum((key >= low.to(tl.int32)).to(tl.int32), 0)
    while n < wanted:
        high = low
        stride = stride * 8
        low = tl.maximum(high - stride, -2147483648)
        n = tl.sum((key >= low.to(tl.int32)).to(tl.int32), 0)
    while n > wanted:
        middle = (low + high) >> 1
        count = tl.sum((key >= middle.to(tl.int32)).to(tl.int32), 0)
        enough = count >= wanted
        low = tl.where(enough, middle, low)
        n = tl.where(enough, count, n)
        high = tl.where(enough, high, middle)
    return low.to(tl.int32)


@triton.jit
def select_blocks(values, maxima, chosen, n_padded, blocks, n_valid, r, BLOCK: tl.constexpr, SIZE: tl.constexpr):
    """maxima bf16 [m, blocks] -> chosen int32 [m, r]: the r blocks with the greatest maxima, ascending."""
    row = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, SIZE)
    valid = (n_valid + BLOCK - 1) // BLOCK
    top = tl.load(maxima + row * blocks + at, mask=at < valid, other=0.0)
    token = (valid - 1) * BLOCK + tl.arange(0, BLOCK)  # the last block's maximum counts its valid rows only
    edge = tl.max(tl.load(values + row * n_padded + token, mask=token < n_valid, other=float("-inf")).to(tl.float32), 0)
    top = tl.where(at == valid - 1, edge, top.to(tl.float32)).to(tl.bfloat16)
    key = tl.where(at < valid, key_of(top, at), -2147483648)
    wanted = tl.minimum(r, valid)
    taken = key >= threshold_of(key, wanted)
    place = tl.cumsum(taken.to(tl.int32), 0) - 1
    tl.store(chosen + row * r + place, at, mask=taken & (place < r))


@triton.jit
def select_tokens(values, chosen, picked, n_padded, n_valid, r, BLOCK: tl.constexpr, SIZE: tl.constexpr):
    """The tokens of the chosen blocks -> picked int32 [m, r]: the keys of the r best, in the order of their ids."""
    row = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, SIZE)
    blocks = tl.minimum(r, (n_valid + BLOCK - 1) // BLOCK)
    inside = at < blocks * BLOCK
    token = tl.load(chosen + row * r + at // BLOCK, mask=inside, other=0) * BLOCK + at % BLOCK
    inside = inside & (token < n_valid)
    key = tl.where(inside, key_of(tl.load(values + row * n_padded + token, mask=inside, other=0.0), at), -2147483648)
    count = tl.minimum(r, n_valid)
    taken = inside & (key >= threshold_of(key, count))
    place = tl.cumsum(taken.to(tl.int32), 0) - 1
    tl.store(picked + row * r + place, key, mask=taken & (place < r))


@triton.jit
def order_tokens(chosen, picked, ids, n_valid, r, BLOCK: tl.constexpr, SIZE: tl.constexpr, CHUNK: tl.constexpr):
    """picked keys -> ids int32 [m, r], best first, -1 past the last; a key's rank is the number of greater ones."""
    row = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, SIZE)
    count = tl.minimum(r, n_valid)
    key = tl.load(picked + row * r + at, mask=at < count, other=-2147483648)
    rank = tl.zeros((SIZE,), tl.int32)
    for start in range(0, SIZE, CHUNK):
        other = start + tl.arange(0, CHUNK)
        rival = tl.load(picked + row * r + other, mask=other < count, other=-2147483648)
        rank += tl.sum((rival[None, :] > key[:, None]).to(tl.int32), 1)
    place = 65535 - (key & 65535)
    block = tl.load(chosen + row * r + place // BLOCK, mask=at < count, other=0)
    tl.store(ids + row * r + rank, block * BLOCK + place % BLOCK, mask=at < count)
    tl.store(ids + row * r + at, -1, mask=(at >= count) & (at < r))


def select(values: torch.Tensor, maxima: torch.Tensor, block: int, n_valid: int, ids: torch.Tensor) -> None:
    """values bf16 [m, n_padded], maxima bf16 [m, blocks] -> ids int32 [m, r], contiguous. r * block and the blocks stay below
    65536."""
    m, r = ids.shape
    blocks = maxima.shape[1]
    if r * block > 65536 or blocks > 65536:
        raise ValueError(f"r={r} or {blocks} blocks of {block}: places must stay below 65536 (select_triton)")
    chosen = torch.empty(m, r, dtype=torch.int32, device=values.device)
    picked = torch.empty_like(chosen)
    grid: Any = (m,)
    wide = triton.next_power_of_2(r)
    select_blocks[grid](values, maxima, chosen, values.stride(0), blocks, n_valid, r, BLOCK=block,
                        SIZE=triton.next_power_of_2(blocks), num_warps=8)  # fmt: skip
    select_tokens[grid](values, chosen, picked, values.stride(0), n_valid, r, BLOCK=block, SIZE=wide * block,
                        num_warps=8 if r <= 128 else 32)  # fmt: skip
    order_tokens[grid](chosen, picked, ids, n_valid, r, BLOCK=block, SIZE=wide, CHUNK=min(wide, 32), num_warps=4)
