"""The portable coarse pass: quarter-split codes, one dot a group, half-steps on the accumulator.

The weights are the long side of the dot. Each byte tile feeds four dots, one a quarter of a span of 4 groups. int8: exact
sums of (2v - 3) * level. bf16: the bits 0x3F80 | v << 5 are the bf16 number 1 + v/4, so no conversion either, and
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
from radiance.rotation import Rotation, hadamard


@triton.jit
def coarse_kernel(
    codes, half_steps, levels, steps, values, maxima, n_padded, blocks,
    K_PADDED: tl.constexpr, GROUP: tl.constexpr, BLOCK_N: tl.constexpr, ROWS: tl.constexpr, IS_INT8: tl.constexpr,
):  # fmt: skip
    """codes uint8 [n_padded, K_PADDED / 4], half_steps bf16 [group, n_padded], levels int8 [rows, K_PADDED], steps fp32
    [rows] -> values bf16 [rows, n_padded], maxima bf16 [rows, blocks]. One program: BLOCK_N rows x ROWS draft rows."""
    block = tl.program_id(0)
    row = block.to(tl.int64) * BLOCK_N + tl.arange(0, BLOCK_N)
    m = (tl.program_id(1) * ROWS + tl.arange(0, ROWS)).to(tl.int64)
    at = tl.arange(0, GROUP)
    total = tl.zeros((BLOCK_N, ROWS), tl.float32)
    for span in range(K_PADDED // (4 * GROUP)):
        packed = tl.load(codes + row[:, None] * (K_PADDED // 4) + span * GROUP + at[None, :])
        wide = packed.to(tl.int16)
        for quarter in tl.static_range(4):
            group = span * 4 + quarter
            x = tl.load(levels + m[None, :] * K_PADDED + group * GROUP + at[:, None])
            half_step = tl.load(half_steps + group.to(tl.int64) * n_padded + row).to(tl.float32)
            if IS_INT8:
                weight = (((packed >> (2 * quarter)) & 3) * 2).to(tl.int8) - 3
                total += tl.dot(weight, x, out_dtype=tl.int32).to(tl.float32) * half_step[:, None]
            else:
                shifted = (wide << (5 - 2 * quarter)) if quarter < 3 else (wide >> 1)
                weight = ((shifted & 0x60) | 0x3F80).to(tl.bfloat16, bitcast=True)
                sums = tl.sum(x.to(tl.int32), 0).to(tl.float32)
                product = tl.dot(weight, x.to(tl.bfloat16), out_dtype=tl.float32)
                total += (8.0 * product - 11.0 * sums[None, :]) * half_step[:, None]
    value = (total * tl.load(steps + m)[None, :]).to(tl.bfloat16)
    value = tl.where(value.to(tl.float32) == 0.0, 0.0, value.to(tl.float32))  # no -0: it would sort below 0
    tl.store(values + m[None, :] * n_padded + row[:, None], value.to(tl.bfloat16))
    tl.store(maxima + m * blocks + block, tl.max(value, 0).to(tl.bfloat16))


def coarse(packed: Packed, rotation: Rotation, x: torch.Tensor) -> list[tuple[int, torch.Tensor, torch.Tensor]]:
    """x [m, k] -> [(row0, values bf16 [rows, n_padded], maxima bf16 [rows, blocks])], tiles of at most 128 draft rows."""
    pieces = []
    for row0 in range(0, x.shape[0], tuning.SCRATCH_ROWS):
        part = x[row0 : row0 + tuning.SCRATCH_ROWS]
        values, maxima = run(packed, rotation, part, tuning.triton(part.shape[0], torch.version.hip is not None))
        pieces.append((row0, values[: part.shape[0]], maxima[: part.shape[0]]))
    return pieces


def run(
    packed: Packed, rotation: Rotation, x: torch.Tensor, launch: tuning.Triton
) -> tuple[torch.Tensor, torch.Tensor]:
    """One tile of draft rows, padded to a multiple of launch.rows."""
    f, where = packed.format, x.device
    rows = -(-x.shape[0] // launch.rows) * launch.rows
    levels, steps = rotate(rotation, x, rows, f.k_padded)
    blocks = f.n_padded // f.block
    values = torch.empty(rows, f.n_padded, dtype=torch.bfloat16, device=where)
    maxima = torch.empty(rows, blocks, dtype=torch.bfloat16, device=where)
    grid: Any = (blocks, rows // launch.rows)
    coarse_kernel[grid](
        packed.codes, packed.half_steps, levels, steps, values, maxima, f.n_padded, blocks,
        K_PADDED=f.k_padded, GROUP=f.group, BLOCK_N=f.block, ROWS=launch.rows, IS_INT8=launch.is_int8,
        num_warps=launch.warps, num_stages=launch.stages,
    )  # fmt: skip
    return values, maxima


def rotate(rotation: Rotation, x: torch.Tensor, rows: int, k_padded: int) -> tuple[torch.Tensor, torch.Tensor]:
    """x [m, k] -> (levels int8 [rows, k_padded], steps fp32 [rows]); rows past m and columns past k are 0."""
    k, a, b = rotation.k, rotation.a, rotation.b
    turned = torch.empty(x.shape[0], k, dtype=torch.float32, device=x.device)
    levels = torch.zeros(rows, k_padded, dtype=torch.int8, device=x.device)
    steps = torch.zeros(rows, dtype=torch.float32, device=x.device)
    grid: Any = (x.shape[0],)
    size = triton.next_power_of_2(k)
    rotate_triton.transform[grid](
        x, x.stride(0), rotation.x_scale, turned, K=k, A=a, B=b, LOG_B=b.bit_length() - 1, SIZE=size, num_warps=8
    )
    dense = a > 1 and hadamard(a) is not None
    rotate_triton.quantise[grid](
        turned, _table(a, x.device), levels, steps, rotation.norm, K=k, K_PADDED=k_padded, A=a, B=b,
        A2=triton.next_power_of_2(a), B2=b, DENSE=dense, num_warps=8,
    )  # fmt: skip
    return levels, steps


_tables: dict[tuple[int, torch.device], torch.Tensor] = {}


def _table(a: int, where: torch.device) -> torch.Tensor:
    """fp32 [a, a]: the dense factor transposed (+-1). Made once, before any capture."""
    if (a, where) not in _tables:
        matrix = hadamard(a) or ((0,),)
        _tables[a, where] = torch.tensor(matrix, dtype=torch.float32).t().contiguous().to(where)
    return _tables[a, where]
