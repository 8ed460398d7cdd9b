"""How well a quantised head ranks: its candidates against the stock head's own answer, position by position.

The stock answer is that of a bf16 row: fp32 sums rounded to bf16, the lowest id of the greatest. Candidates come from
coarse values as the product makes them, winners from the exact rerank of the candidates.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

from radiance import reference
from radiance.schemes import Built, product
from radiance.source import Source

#: callers that ask for 16 candidates get 4 * 16 reranked rows (head.RERANK_PER_TOP_K)
TOP_K, TOP_K_RERANK = 16, 64
#: bf16 bytes of one [m, n] row buffer; about three such live at a time
ROW_BYTES = 256 << 20
BLOCK = 64
SAMPLED_ROWS, SAMPLED_POSITIONS = 8192, 512


@dataclass
class Truth:
    """`top` int64 [p, 16]: the stock row's best ids, best first; `value` fp32 [p]: the greatest, a bf16 value."""

    top: torch.Tensor
    value: torch.Tensor

    def __getitem__(self, part: slice) -> Truth:
        return Truth(self.top[part], self.value[part])


@dataclass
class Recall:
    """Counts over `positions`. `inside`, `agreed`, `tied`, `missed`: one figure for each r of `reranks`.

    A position agrees if the reranked winner is the stock argmax. Of the others it is tied if the winner's exact value is
    within one bf16 ulp of the stock maximum, else missed.
    """

    positions: int
    reranks: list[int]
    inside: list[int]
    agreed: list[int]
    tied: list[int]
    missed: list[int]
    complete_top_k: int


def truth(source: Source, x: torch.Tensor, n_valid: int) -> Truth:
    """x bf16 [p, k]: what the stock head says."""
    tops, values = [], []
    for part in _chunks(x, source.n, "stock head"):
        row = product(part.float(), lambda start, rows: source.rows(start, start + rows), source.n)
        top = select(row, min(TOP_K, n_valid), n_valid)
        tops.append(top)
        values.append(row.gather(1, top[:, :1]).float().squeeze(1))
    return Truth(torch.cat(tops), torch.cat(values))


def measure(built: Built, source: Source, x: torch.Tensor, true: Truth, n_valid: int, reranks: Sequence[int]) -> Recall:
    """x bf16 [p, k], n_valid >= every r. Memory: a few times ROW_BYTES, whatever p."""
    reranks = sorted(reranks)
    count = {name: torch.zeros(len(reranks), dtype=torch.long) for name in ("inside", "agreed", "tied", "missed")}
    complete, seen = 0, 0
    for part in _chunks(x, source.n, "positions"):
        here = true[seen : seen + len(part)]
        top, value = here.top, here.value
        ids = select(built.coarse(part), min(max(*reranks, TOP_K_RERANK), n_valid), n_valid)
        exact = reference.rerank(source, part, ids).bfloat16().float()
        for i, r in enumerate(reranks):
            winner, best = reference.best(ids[:, :r], exact[:, :r])
            agreed = winner == top[:, 0]
            near = (_ordered(best) - _ordered(value)).abs() <= 1
            count["inside"][i] += (ids[:, :r] == top[:, :1]).any(1).sum().cpu()
            count["agreed"][i] += agreed.sum().cpu()
            count["tied"][i] += (~agreed & near).sum().cpu()
            count["missed"][i] += (~agreed & ~near).sum().cpu()
        complete += int((top[:, :, None] == ids[:, None, :TOP_K_RERANK]).any(2).all(1).sum())
        seen += len(part)
    lists = {name: counts.tolist() for name, counts in count.items()}
    return Recall(seen, list(reranks), complete_top_k=complete, **lists)


def total(parts: Sequence[Recall]) -> Recall:
    """Counts of several sets of positions, taken together."""

    def lists(name: str) -> list[int]:
        return [sum(counts) for counts in zip(*(getattr(part, name) for part in parts), strict=True)]

    positions, complete = sum(part.positions for part in parts), sum(part.complete_top_k for part in parts)
    return Recall(
        positions, parts[0].reranks, lists("inside"), lists("agreed"), lists("tied"), lists("missed"), complete
    )


def select(values: torch.Tensor, r: int, n_valid: int) -> torch.Tensor:
    """reference.select() through block maxima, many times faster: bf16 [m, n] -> ids int64 [m, r], r <= n_valid.

    The r best tokens lie in the r blocks whose maxima come first by (value, id): each of those holds one as good.
    """
    blocks = -(-n_valid // BLOCK)
    if blocks <= r:
        return reference.select(values, r, n_valid)
    padded = torch.nn.functional.pad(values[:, :n_valid], (0, blocks * BLOCK - n_valid), value=-torch.inf)
    padded = padded.view(len(values), blocks, BLOCK)
    chosen = reference.select(padded.amax(2), r, blocks).sort(dim=1).values
    inside = padded.gather(1, chosen[..., None].expand(-1, -1, BLOCK)).flatten(1)
    place = reference.select(inside, r, inside.shape[1])
    return chosen.gather(1, place // BLOCK) * BLOCK + place % BLOCK


def errors(built: Built, source: Source, x: torch.Tensor, n_valid: int) -> tuple[float, float]:
    """Relative errors: of weights, |W' - W| / |W| with the mean row known, and of logits, |(W' - W) x| / |(W - mean) x|.

    Over evenly spread rows and positions. Both in the head's own basis: a column scale weighs errors otherwise. What is
    common to all logits of a position moves no rank and does not count as an error.
    """
    back = built.rotation.rotate_x(torch.eye(source.k, device=x.device)).T  # turned row @ back is the row
    runs = max(1, n_valid // SAMPLED_ROWS)
    x = x[:: max(1, len(x) // SAMPLED_POSITIONS)].float()
    starts = range(0, n_valid, 512 * runs)
    weights = torch.cat([source.rows(start, min(start + 512, n_valid)) for start in starts])
    held = torch.cat([built.decode(start, min(512, n_valid - start)) for start in starts]) @ back + built.mean
    wrong = held.sub_(weights)
    weight = wrong.norm() / weights.norm()
    logits, off = x @ weights.T, x @ wrong.T
    spread = [(part - part.mean(1, keepdim=True)).norm() for part in (off, logits)]
    return float(weight), float(spread[0] / spread[1])


def _ordered(values: torch.Tensor) -> torch.Tensor:
    """fp32 tensors of bf16 values -> integers in their order, neighbours one apart."""
    bits = values.bfloat16().view(torch.int16).long()
    return torch.where(bits >= 0, bits, -32768 - bits)


def _chunks(x: torch.Tensor, n: int, what: str) -> Iterator[torch.Tensor]:
    """Parts of x whose [m, n] row fits ROW_BYTES; says on stderr how far it is every 15 s."""
    size = max(1, ROW_BYTES // (2 * n))
    told = time.monotonic()
    for start in range(0, len(x), size):
        yield x[start : start + size]
        if time.monotonic() - told > 15:
            told = time.monotonic()
            print(f"    {what}: {min(start + size, len(x))} of {len(x)}", file=sys.stderr, flush=True)
