"""The executable specification of coarse -> select -> rerank in plain torch; also the CPU backend.

m draft rows, n local vocabulary rows, k hidden size, r reranked rows. The kernels are tested against these functions.
"""

from __future__ import annotations

import torch

from radiance import pack
from radiance.rotation import Rotation
from radiance.source import Source

#: rows decoded at a time: bounds the fp32 temporary to a few MiB
CHUNK_ROWS = 4096
#: fp32 bytes of gathered head rows at a time in rerank()
GATHER_BYTES = 64 << 20


def quantise_x(rotation: Rotation, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """[m, k] -> int8 levels as fp32 [m, k] of the rotated x, and fp32 steps [m, 1]. An all-zero row stays zero."""
    turned = rotation.rotate_x(x)
    step = turned.abs().amax(dim=1, keepdim=True) / 127
    return (turned / step.clamp_min(1e-30)).round(), step


def coarse(packed: pack.Packed, rotation: Rotation, x: torch.Tensor) -> torch.Tensor:
    """Approximate logits bf16 [m, n] of all rows, padding rows included (select() leaves them out)."""
    levels, step = quantise_x(rotation, x)
    fmt = packed.format
    out = torch.empty(x.shape[0], fmt.n, dtype=torch.bfloat16, device=x.device)
    for start in range(0, fmt.n, CHUNK_ROWS):
        rows = min(CHUNK_ROWS, fmt.n - start)
        out[:, start : start + rows] = (levels @ decode(packed, start, rows).T) * step
    return out


def decode(packed: pack.Packed, start: int, rows: int) -> torch.Tensor:
    """fp32 [rows, k]: the packed weights s * (2v - 3), still rotated."""
    codes, half_steps = pack.read_rows(packed, start, rows)
    fmt = packed.format
    spread = half_steps.float().repeat_interleave(fmt.group, dim=1)[:, : fmt.k]
    return (codes.float() * 2 - 3) * spread


def select(values: torch.Tensor, r: int, n_valid: int) -> torch.Tensor:
    """The r best ids of each row by (value descending, id ascending), int64 [m, r]; -1 where fewer than r exist.

    bf16 values and ids make one sortable integer, so ties cannot fall to chance as in torch.topk. NaN sorts last.
    """
    usable = values[:, :n_valid].float()
    bits = torch.where(usable.isnan(), torch.full_like(usable, -torch.inf), usable).bfloat16().view(torch.int16).long()
    ordered = torch.where(bits >= 0, bits, -32768 - bits)  # the order of floats; -0 sorts as 0
    ids = torch.arange(n_valid, device=values.device)
    keys = (ordered << 32) + ((1 << 31) - ids)
    top = keys.topk(min(r, n_valid), dim=1).values
    best = (1 << 31) - (top & 0xFFFFFFFF)
    return torch.nn.functional.pad(best, (0, r - best.shape[1]), value=-1)


def rerank(source: Source, x: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    """Exact logits fp32 [m, r] of the given rows: decoded weight times the original x, fp32 sums; -inf where id is -1."""
    values = torch.empty(ids.shape, dtype=torch.float32, device=x.device)
    step = max(1, GATHER_BYTES // (4 * ids.shape[1] * source.k))
    for start in range(0, x.shape[0], step):
        rows = source.gather(ids[start : start + step].clamp_min(0).long())
        values[start : start + step] = torch.einsum("mrk,mk->mr", rows, x[start : start + step].float())
    return values.masked_fill(ids < 0, -torch.inf)


def best(ids: torch.Tensor, values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The id with the greatest value in each row, ties to the lowest id: int64 [m] and its value [m]."""
    top = values.amax(dim=1, keepdim=True)
    tied = torch.where((values == top) & (ids >= 0), ids, torch.iinfo(torch.int64).max)
    winner = tied.amin(dim=1)
    return winner.where(winner != torch.iinfo(torch.int64).max, ids[:, 0].clamp_min(0)), top.squeeze(1)
