"""What callers are given: the k best of the candidates, or a row [m, n] made of them.

Candidates are ids int64 [m, r], -1 for none, and their exact logits fp32 [m, r], -inf there.
"""

from __future__ import annotations

import torch

from radiance.coarse import Piece, Scratch, path
from radiance.pack import Packed

#: draft rows whose fp32 sums live at a time in full_of()
ROWS = 16


def best_k(ids: torch.Tensor, exact: torch.Tensor, k: int) -> tuple[torch.Tensor, torch.Tensor]:
    """ids int64 [m, k] and logits fp32 [m, k], best first, ties to the lowest id; where there are fewer: -inf, some id."""
    by_id = ids.argsort(dim=1)
    ids, exact = ids.gather(1, by_id), exact.gather(1, by_id)
    order = exact.sort(dim=1, descending=True, stable=True).indices[:, :k]
    return ids.gather(1, order).clamp_min(0), exact.gather(1, order)


def put(out: torch.Tensor, ids: torch.Tensor, exact: torch.Tensor) -> torch.Tensor:
    """Write the candidates into out [m, n]. Where there are fewer than r, the first one is written again: no extra column,
    so `out` stays contiguous, as a gather over ranks needs it."""
    some = ids >= 0
    exact = exact.where(some, exact[:, :1]).to(out.dtype)
    return out.scatter_(1, ids.where(some, ids[:, :1]).clamp_min(0), exact)


def full_of(
    packed: Packed, pieces: list[Piece], x: torch.Tensor, mean: torch.Tensor, out: torch.Tensor, n_valid: int,
    vocab: torch.Tensor | None,
) -> torch.Tensor:  # fmt: skip
    """Write coarse values plus what the codes left out (x . mean) into out [m, n], -inf before, for the first n_valid rows
    or those of `vocab`."""
    values = Scratch(path(packed), packed.format, len(x), pieces).row_values()
    left_out = x.float() @ mean
    for start in range(0, len(x), ROWS):
        rows = slice(start, start + ROWS)
        known = (values[rows, :n_valid].float() + left_out[rows, None]).to(out.dtype)
        if vocab is None:
            out[rows, :n_valid] = known
        else:
            out[rows, vocab.long()] = known
    return out
