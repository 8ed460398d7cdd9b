"""x -> int8 levels of the rotated x, portable. Two launches: the fast transform along b, then the dense factor and levels.

Device code only; radiance/kernels/coarse_triton.py launches it.
"""

# mypy: disable-error-code="no-untyped-def,untyped-decorator"
# Triton gives a kernel's arguments no types that a checker could use.
from __future__ import annotations

import triton
import triton.language as tl


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
    y, table, levels, steps, norm,
    K: tl.constexpr, K_PADDED: tl.constexpr, A: tl.constexpr, B: tl.constexpr, A2: tl.constexpr, B2: tl.constexpr, DENSE: tl.constexpr,
):  # fmt: skip
    """One draft row: +-1 sums along a (table[source, i], fp32 [A, A]), the step max|y| / 127 and the levels int8 [K_PADDED]."""
    row = tl.program_id(0).to(tl.int64)
    i = tl.arange(0, A2)
    j = tl.arange(0, B2)
    inside = (i[:, None] < A) & (j[None, :] < B)
    if DENSE:
        turned = tl.zeros((A2, B2), tl.float32)
        for source in range(A):
            signs = tl.load(table + source * A + i, mask=i < A, other=0.0)
            turned += signs[:, None] * tl.load(y + row * K + source * B + j, mask=j < B, other=0.0)[None, :]
    else:
        turned = tl.load(y + row * K + i[:, None] * B + j[None, :], mask=inside, other=0.0)
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
    tl.store(levels + row * K_PADDED + i[:, None] * B + j[None, :], level.to(tl.int8), mask=inside)
    tl.store(steps + row, tl.where(usable, step, 0.0))
