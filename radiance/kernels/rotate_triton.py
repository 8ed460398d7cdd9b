"""x -> int8 levels of the rotated x, portable. Two launches: the fast transform along b, then the dense factor and levels."""

# mypy: disable-error-code="no-untyped-def,untyped-decorator"
# Triton gives a kernel's arguments no types that a checker could use.
from __future__ import annotations

from functools import lru_cache
from typing import Any

import torch
import triton
import triton.language as tl

from radiance.rotation import Rotation, hadamard


@triton.jit
def transform(
    x, x_stride, scale, out,
    K: tl.constexpr, A: tl.constexpr, B: tl.constexpr, LOG_B: tl.constexpr, SIZE: tl.constexpr,
):  # fmt: skip
    """One draft row: out[a, b] fp32 = Walsh-Hadamard along b of x * scale, not normalised. SIZE: A * B up to a power of two."""
    row = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, SIZE)
    y = tl.load(x + row * x_stride + at, mask=at < K, other=0.0).to(tl.float32) * tl.load(
        scale + at, mask=at < K, other=0.0
    )
    for log in tl.static_range(LOG_B):  # pairs 2^log apart
        pairs = tl.permute(tl.reshape(y, (SIZE >> (log + 1), 2, 1 << log)), (0, 2, 1))
        low, high = tl.split(pairs)
        y = tl.reshape(tl.permute(tl.join(low + high, low - high), (0, 2, 1)), (SIZE,))
    tl.store(out + row * K + at, y, mask=at < K)


@triton.jit
def quantise(
    y, table, levels, steps, norm, m,
    K: tl.constexpr, K_PADDED: tl.constexpr, A: tl.constexpr, B: tl.constexpr, A2: tl.constexpr, B2: tl.constexpr,
    PAD: tl.constexpr, DENSE: tl.constexpr, IN_WORDS: tl.constexpr, UNROLL: tl.constexpr,
):  # fmt: skip
    """One draft row: +-1 sums along a (table[source, i], fp32 [A, A]), the step max|y| / 127 and the levels int8 [K_PADDED],
    in the order of place() if IN_WORDS. Rows from m on and columns from K on (PAD: their number up to a power of two) are 0."""
    row = tl.program_id(0).to(tl.int64)
    i = tl.arange(0, A2)
    j = tl.arange(0, B2)
    inside = (i[:, None] < A) & (j[None, :] < B)
    width = tl.where(row < m, B, 0)
    if DENSE:
        turned = tl.zeros((A2, B2), tl.float32)
        for source in tl.range(A, loop_unroll_factor=UNROLL):  # sums wait for each other, loads need not
            signs = tl.load(table + source * A + i, mask=i < A, other=0.0)
            turned += signs[:, None] * tl.load(y + row * K + source * B + j, mask=j < width, other=0.0)[None, :]
    else:
        turned = tl.load(
            y + row * K + i[:, None] * B + j[None, :], mask=(i[:, None] < A) & (j[None, :] < width), other=0.0
        )
    turned = turned * norm
    size = tl.abs(turned)
    # max() may drop a NaN, so finite-ness is counted apart; such a row counts as zero, and so does one too small to divide
    strange = tl.sum(tl.sum((~(size <= 3.0e38)).to(tl.int32), 1), 0)
    step = tl.max(tl.max(size, 1), 0) / 127.0
    usable = (strange == 0) & (step >= 1e-30)
    per_step = 1.0 / tl.where(usable, step, 1.0)
    scaled = tl.where(usable, turned, 0.0) * per_step
    level = tl.floor(tl.abs(scaled) + 0.5)
    level = tl.minimum(level, 127.0) * tl.where(scaled < 0, -1.0, 1.0)
    column = i[:, None] * B + j[None, :]
    to = place(column) if IN_WORDS else column
    tl.store(levels + row * K_PADDED + to, level.to(tl.int8), mask=inside)
    if PAD:
        column = K + tl.arange(0, PAD)
        to = place(column) if IN_WORDS else column
        tl.store(levels + row * K_PADDED + to, tl.zeros((PAD,), tl.int8), mask=column < K_PADDED)
    tl.store(steps + row, tl.where(usable, step, 0.0))


@triton.jit
def place(column):
    """Where coarse_words meets a column: bits 2-3 and 4-5 of its number change places (coarse_triton.product)."""
    return (column & -61) | ((column & 12) << 2) | ((column >> 2) & 12)


def rotate(
    rotation: Rotation, x: torch.Tensor, rows: int, k_padded: int, *, in_words: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """x [m, k] -> (levels int8 [rows, k_padded], steps fp32 [rows]); rows past m and columns past k are 0."""
    k, a, b, m = rotation.k, rotation.a, rotation.b, x.shape[0]
    turned = torch.empty(m, k, dtype=torch.float32, device=x.device)
    levels = torch.empty(rows, k_padded, dtype=torch.int8, device=x.device)
    steps = torch.empty(rows, dtype=torch.float32, device=x.device)
    grid: Any = (m,)
    size = triton.next_power_of_2(k)
    transform[grid](
        x, x.stride(0), rotation.x_scale, turned, K=k, A=a, B=b, LOG_B=b.bit_length() - 1, SIZE=size, num_warps=8
    )
    grid = (rows,)
    quantise[grid](
        turned, _table(a, x.device), levels, steps, rotation.norm, m, K=k, K_PADDED=k_padded, A=a, B=b,
        A2=triton.next_power_of_2(a), B2=b, PAD=triton.next_power_of_2(k_padded - k) if k < k_padded else 0,
        DENSE=a > 1 and hadamard(a) is not None, IN_WORDS=in_words, UNROLL=4, num_warps=8,
    )  # fmt: skip
    return levels, steps


@lru_cache(maxsize=64)
def _table(a: int, where: torch.device) -> torch.Tensor:
    """fp32 [a, a]: the dense factor transposed (+-1). Made once, before any capture."""
    matrix = hadamard(a) or ((0,),)
    return torch.tensor(matrix, dtype=torch.float32).t().contiguous().to(where)
