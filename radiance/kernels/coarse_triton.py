"""The portable coarse pass: quarter-split codes, one dot a group, half-steps on the accumulator. Weights are the long side.

coarse_words (int8) works on words of four codes: ((word << s) & C0C0C0C0) ^ A0A0A0A0 is four int8 of 32 (2v - 3), so a
weight costs half an instruction, and joining the four truncated bytes of a word costs none, as the compiler sees that it
is the word. Columns meet so that a lane's share of a row is 16 bytes side by side: rotate_triton stores x in that order.
coarse_bits (bf16): the bits 0x3F80 | v << 5 are the bf16 number 1 + v/4, so no conversion, and
s (2v - 3) x = s (8 (1 + v/4) - 11) x needs the group's sum of x once. Block maxima are taken from the stored bf16 values.
NOTE: Triton's interpreter multiplies bit-cast bf16 operands wrongly; there only the int8 form can be tested.
"""

# mypy: disable-error-code="no-untyped-def,untyped-decorator"
# Triton gives a kernel's arguments no types that a checker could use.
from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

from radiance import tuning
from radiance.kernels import rotate_triton
from radiance.pack import Packed
from radiance.rotation import Rotation

BLOCK = tl.constexpr(64)  # rows that share a maximum: Format.block of the quarter layout
TOP_BITS = tl.constexpr(-0x3F3F3F40)  # C0C0C0C0
FLIP = tl.constexpr(-0x5F5F5F60)  # A0A0A0A0: v ^ 2 above, and 32 more


@triton.jit
def coarse_words(
    codes, half_steps, levels, steps, values, maxima, n_padded, blocks,
    K_PADDED: tl.constexpr, GROUP: tl.constexpr, BLOCK_N: tl.constexpr, ROWS: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """codes int32 [n_padded, K_PADDED / 16], half_steps bf16 [group, n_padded], levels int8 [rows, K_PADDED] as
    rotate_triton.in_words orders them, steps fp32 [rows] -> values bf16 [rows, n_padded], maxima bf16 [rows, blocks].
    One program: BLOCK_N rows x ROWS draft rows."""
    SPANS: tl.constexpr = K_PADDED // (4 * GROUP)
    tile = tl.program_id(1)
    row = tl.minimum(tile.to(tl.int64) * BLOCK_N + tl.arange(0, BLOCK_N), n_padded - 1)
    m = (tl.program_id(0) * ROWS + tl.arange(0, ROWS)).to(tl.int64)
    word = codes + row[:, None] * (K_PADDED // 16) + tl.arange(0, GROUP // 4)[None, :]
    level = levels + m[None, :] * K_PADDED + tl.arange(0, GROUP)[:, None]
    half_step = half_steps + row
    # Half-steps feed no dot, so Triton does not prefetch them: they are loaded two spans ahead by hand. What a span uses
    # is converted the span before, as Triton pipelines no loop that hands a value on unchanged.
    now = as_floats(half_steps_of(half_step, n_padded))
    later = half_steps_of(half_step + tl.minimum(1, SPANS - 1) * 4 * n_padded.to(tl.int64), n_padded)
    total = tl.zeros((BLOCK_N, ROWS), tl.float32)
    for span in tl.range(SPANS, num_stages=STAGES):
        packed = tl.load(word + span * (GROUP // 4))
        x0 = tl.load(level + (4 * span) * GROUP)
        x1 = tl.load(level + (4 * span + 1) * GROUP)
        x2 = tl.load(level + (4 * span + 2) * GROUP)
        x3 = tl.load(level + (4 * span + 3) * GROUP)
        last = half_steps_of(half_step + tl.minimum(span + 2, SPANS - 1) * 4 * n_padded.to(tl.int64), n_padded)
        total += product(packed << 6, x0, now[0], BLOCK_N, GROUP)
        total += product(packed << 4, x1, now[1], BLOCK_N, GROUP)
        total += product(packed << 2, x2, now[2], BLOCK_N, GROUP)
        total += product(packed, x3, now[3], BLOCK_N, GROUP)
        now = as_floats(later)
        later = last
    store(total, tl.load(steps + m) * 0.03125, values, maxima, m, tile, n_padded, blocks, BLOCK_N, ROWS)


@triton.jit
def half_steps_of(at, n_padded):
    """Those of the four groups of a span."""
    return tl.load(at), tl.load(at + n_padded), tl.load(at + 2 * n_padded), tl.load(at + 3 * n_padded)


@triton.jit
def as_floats(four):
    return four[0].to(tl.float32), four[1].to(tl.float32), four[2].to(tl.float32), four[3].to(tl.float32)


@triton.jit
def product(shifted, x, half_step, BLOCK_N: tl.constexpr, GROUP: tl.constexpr):
    """32 (2v - 3) . x times the half-step, for the codes v in the top two bits of each byte. A thread of an NVIDIA product
    holds 4 columns of each 16: from 16 bytes (t) in a row it takes them as 4 words (q), so columns go by c, q, t, byte."""
    w = (shifted & TOP_BITS) ^ FLIP
    even = tl.join(w.to(tl.int8), (w >> 16).to(tl.int8))
    odd = tl.join((w >> 8).to(tl.int8), (w >> 24).to(tl.int8))
    by_chunk = tl.reshape(tl.join(even, odd), (BLOCK_N, GROUP // 64, 4, 4, 4))
    weight = tl.reshape(tl.permute(by_chunk, (0, 1, 3, 2, 4)), (BLOCK_N, GROUP))
    return tl.dot(weight, x, out_dtype=tl.int32).to(tl.float32) * half_step[:, None]


@triton.jit
def coarse_bits(
    codes, half_steps, levels, steps, values, maxima, n_padded, blocks,
    K_PADDED: tl.constexpr, GROUP: tl.constexpr, BLOCK_N: tl.constexpr, ROWS: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """As coarse_words, but codes are uint8 [n_padded, K_PADDED / 4] and levels stand in their own order."""
    tile = tl.program_id(1)
    row = tl.minimum(tile.to(tl.int64) * BLOCK_N + tl.arange(0, BLOCK_N), n_padded - 1)
    m = (tl.program_id(0) * ROWS + tl.arange(0, ROWS)).to(tl.int64)
    at = tl.arange(0, GROUP)
    total = tl.zeros((BLOCK_N, ROWS), tl.float32)
    for span in tl.range(K_PADDED // (4 * GROUP), num_stages=STAGES):
        wide = tl.load(codes + row[:, None] * (K_PADDED // 4) + span * GROUP + at[None, :]).to(tl.int16)
        for quarter in tl.static_range(4):
            group = span * 4 + quarter
            x = tl.load(levels + m[None, :] * K_PADDED + group * GROUP + at[:, None])
            half_step = tl.load(half_steps + group.to(tl.int64) * n_padded + row).to(tl.float32)
            shifted = (wide << (5 - 2 * quarter)) if quarter < 3 else (wide >> 1)
            weight = ((shifted & 0x60) | 0x3F80).to(tl.bfloat16, bitcast=True)
            sums = tl.sum(x.to(tl.int32), 0).to(tl.float32)
            dot = tl.dot(weight, x.to(tl.bfloat16), out_dtype=tl.float32)
            total += (8.0 * dot - 11.0 * sums[None, :]) * half_step[:, None]
    store(total, tl.load(steps + m), values, maxima, m, tile, n_padded, blocks, BLOCK_N, ROWS)


@triton.jit
def store(total, step, values, maxima, m, tile, n_padded, blocks, BLOCK_N: tl.constexpr, ROWS: tl.constexpr):
    value = (total * step[None, :]).to(tl.bfloat16).to(tl.float32)
    value = tl.where(value == 0.0, 0.0, value)  # no -0: it would sort below 0
    row = tile.to(tl.int64) * BLOCK_N + tl.arange(0, BLOCK_N)
    at = values + m[None, :] * n_padded + row[:, None]
    tl.store(at, value.to(tl.bfloat16), mask=(row < n_padded)[:, None])
    block = tile * (BLOCK_N // BLOCK) + tl.arange(0, BLOCK_N // BLOCK)
    top = tl.max(tl.reshape(value, (BLOCK_N // BLOCK, BLOCK, ROWS)), 1)
    tl.store(maxima + m[None, :] * blocks + block[:, None], top.to(tl.bfloat16), mask=(block < blocks)[:, None])


def coarse(packed: Packed, rotation: Rotation, x: torch.Tensor) -> list[tuple[int, torch.Tensor, torch.Tensor]]:
    """x [m, k] -> [(row0, values bf16 [rows, n_padded], maxima bf16 [rows, blocks])], tiles of at most 128 draft rows."""
    pieces = []
    device = tuning.device(packed.device)
    for row0 in range(0, x.shape[0], tuning.SCRATCH_ROWS):
        part = x[row0 : row0 + tuning.SCRATCH_ROWS]
        launch = tuning.triton(part.shape[0], packed.format, device, is_amd=torch.version.hip is not None)
        values, maxima = run(packed, rotation, part, launch)
        pieces.append((row0, values[: part.shape[0]], maxima[: part.shape[0]]))
    return pieces


def run(
    packed: Packed, rotation: Rotation, x: torch.Tensor, launch: tuning.Triton
) -> tuple[torch.Tensor, torch.Tensor]:
    """One tile of draft rows, padded to a multiple of launch.rows."""
    rows = -(-x.shape[0] // launch.rows) * launch.rows
    levels, steps = rotate_triton.rotate(rotation, x, rows, packed.format.k_padded, by_words=launch.is_int8)
    return multiply(packed, levels, steps, launch)


def multiply(
    packed: Packed, levels: torch.Tensor, steps: torch.Tensor, launch: tuning.Triton
) -> tuple[torch.Tensor, torch.Tensor]:
    """levels int8 [rows, k_padded] and steps fp32 [rows], rows a multiple of launch.rows -> values and block maxima."""
    f, rows, where = packed.format, levels.shape[0], levels.device
    blocks = f.n_padded // f.block
    values = torch.empty(rows, f.n_padded, dtype=torch.bfloat16, device=where)
    maxima = torch.empty(rows, blocks, dtype=torch.bfloat16, device=where)
    grid: Any = (rows // launch.rows, -(-f.n_padded // launch.block_n))  # draft rows fastest: they share codes in L2
    kernel = coarse_words if launch.is_int8 else coarse_bits
    kernel[grid](
        packed.codes.view(torch.int32) if launch.is_int8 else packed.codes, packed.half_steps, levels, steps, values, maxima,
        f.n_padded, blocks, K_PADDED=f.k_padded, GROUP=f.group, BLOCK_N=launch.block_n, ROWS=launch.rows,
        STAGES=launch.stages, num_warps=launch.warps, num_stages=launch.stages,
    )  # fmt: skip
    return values, maxima
