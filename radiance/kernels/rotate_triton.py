"""x -> int8 levels of the rotated x, portable. Two launches: the fast transform along b, then the dense factor and levels."""

# mypy: disable-error-code="no-untyped-def,untyped-decorator"
# Triton gives a kernel's arguments no types that a checker could use.
from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

from radiance.rotation import Rotation, constant, hadamard


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
    K: tl.constexpr, K_PADDED: tl.constexpr, A: tl.constexpr, B: tl.constexpr, A2: tl.constexpr,
    PAD: tl.constexpr, DENSE: tl.constexpr, IN_WORDS: tl.constexpr,
):  # fmt: skip
    """One draft row: +-1 sums along a (table[source, i], fp32 [A, A]), the step max|y| / 127 and the levels int8 [K_PADDED],
    in the order of in_words() if IN_WORDS. Rows from m on are 0, and columns from K on: those of A2 * B, and PAD behind."""
    row = tl.program_id(0).to(tl.int64)
    i = tl.arange(0, A2)
    j = tl.arange(0, B)
    width = tl.where(row < m, B, 0)
    if DENSE:
        turned = tl.zeros((A2, B), tl.float32)
        for source in tl.range(A):
            signs = tl.load(table + source * A + i, mask=i < A, other=0.0)
            turned += signs[:, None] * tl.load(y + row * K + source * B + j, mask=j < width, other=0.0)[None, :]
    else:
        inside = (i[:, None] < A) & (j[None, :] < width)
        turned = tl.load(y + row * K + i[:, None] * B + j[None, :], mask=inside, other=0.0)
    turned = tl.reshape(turned * norm, (A2 * B,))
    size = tl.abs(turned)
    # max() may drop a NaN, so finite-ness is counted apart; such a row counts as zero, and so does one too small to divide
    strange = tl.sum((~(size <= 3.0e38)).to(tl.int32), 0)
    step = tl.div_rn(tl.max(size, 0), 127.0)
    usable = (strange == 0) & (step >= 1e-30)
    scaled = tl.div_rn(tl.where(usable, turned, 0.0), tl.where(usable, step, 1.0))
    level = ((scaled + 12582912.0) - 12582912.0).to(tl.int8)  # 1.5 * 2^23: rounds half to even, as torch does
    column = tl.arange(0, A2 * B)
    tl.store(levels + row * K_PADDED + column, in_words(level, A2 * B) if IN_WORDS else level, mask=column < K_PADDED)
    if PAD:
        column = A2 * B + tl.arange(0, PAD)
        tl.store(levels + row * K_PADDED + column, tl.zeros((PAD,), tl.int8), mask=column < K_PADDED)
    tl.store(steps + row, tl.where(usable, step, 0.0))


@triton.jit
def in_words(level, SIZE: tl.constexpr):
    """Columns as coarse_words meets them: bits 2-3 and 4-5 of their numbers change places (coarse_triton.product)."""
    return tl.reshape(tl.permute(tl.reshape(level, (SIZE // 64, 4, 4, 4)), (0, 2, 1, 3)), (SIZE,))


def rotate(
    rotation: Rotation, x: torch.Tensor, rows: int, k_padded: int, *, by_words: bool
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
    a2 = triton.next_power_of_2(a)
    quantise[grid](
        turned, _table(a, x.device), levels, steps, rotation.norm, m, K=k, K_PADDED=k_padded, A=a, B=b, A2=a2,
        PAD=triton.next_power_of_2(k_padded - a2 * b) if a2 * b < k_padded else 0,
        DENSE=a > 1 and hadamard(a) is not None, IN_WORDS=by_words, num_warps=8,
    )  # fmt: skip
    return levels, steps


def _table(a: int, where: torch.device) -> torch.Tensor:
    """fp32 [a, a]: the dense factor transposed (+-1)."""
    matrix = hadamard(a) or ((0,),)
    return constant("triton", a, where, lambda: torch.tensor(matrix, dtype=torch.float32).t().contiguous())
