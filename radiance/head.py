"""DraftHead: answers from the 2-bit copy of one LM head. coarse -> select -> rerank -> what the caller asked for.

It knows torch and our own parts, not vLLM: radiance/hook puts it into a drafter, asks usable() (lifecycle.py) before every
call, and keeps the stock head for when that says no or something in here raises.
"""

from __future__ import annotations

import time
from bisect import bisect_left
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from radiance import coarse, ledger, reference, rows, shortlist
from radiance.lifecycle import PackedHead
from radiance.settings import MAX_RERANK

#: a caller that asks for k candidates needs 4 k reranked rows (at 2 k DFlash2 was seen to lose 5 % of its acceptance)
RERANK_PER_TOP_K = 4


class DraftHead(PackedHead):
    """One head: x [m, k] in, token ids, values or rows [m, n] out, rows of this rank's shard."""

    def candidates(
        self, x: torch.Tensor, r: int, pieces: list[coarse.Piece] | None = None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """x [m, k] -> ids int64 [m, r], best coarse value first (-1: none), and their exact logits fp32 [m, r].

        Logits are rounded to round_to before they are compared, ties to the lowest id, because the target that judges
        the draft does exactly that with its own row.
        """
        done = self._packed()
        return shortlist.candidates(
            done.packed,
            done.plan.rotation,
            self.source,
            x,
            r,
            self.packed_rows,
            round_to=self.round_to,
            counters=self.ledger,
            vocab=self.vocab,
            pieces=pieces,
        )

    def top_tokens(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Argmax callers: x [m, k] -> local ids int64 [m] and their logits fp32 [m]; no [m, n] row exists."""
        done = self._packed()
        with ledger.host_clock(self.ledger, x.device):
            return shortlist.top_tokens(
                done.packed, done.plan.rotation, self.source, x, self.rerank, self.packed_rows,
                round_to=self.round_to, counters=self.ledger, vocab=self.vocab,
            )  # fmt: skip

    def top_k(self, x: torch.Tensor, k: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Top-k callers: local ids int64 [m, k] and exact logits fp32 [m, k], best first, ties to the lowest id."""
        with ledger.host_clock(self.ledger, x.device):
            return rows.best_k(*self.candidates(x, self._rerank_for(k)), k)

    def _rerank_for(self, k: int) -> int:
        return max(min(max(self.asked_rerank or 0, RERANK_PER_TOP_K * k), self.packed_rows, MAX_RERANK), k)

    def full_row(self, x: torch.Tensor, k: int = 0) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Callers that need every value: [m, n] in round_to, exact on the reranked rows, elsewhere the coarse value plus
        what the codes left out (x . mean), -inf for padding and what is not drafted; and the k best, as top_k() does."""
        with ledger.host_clock(self.ledger, x.device):
            pieces: list[coarse.Piece] = []
            ids, exact = self.candidates(x, self._rerank_for(k) if k else self.rerank, pieces)
            done = self._packed()
            out = self._blank(x)
            rows.full_of(done.packed, pieces, x, done.plan.mean, out, self.packed_rows, self.vocab)
            return rows.put(out, ids, exact), *rows.best_k(ids, exact, k)

    def row(self, x: torch.Tensor) -> torch.Tensor:
        """Row callers: [m, n] in round_to, exact on the reranked rows and -inf elsewhere."""
        with ledger.host_clock(self.ledger, x.device):
            ids, exact = self.candidates(x, self.rerank)
            return rows.put(self._blank(x), ids, exact)

    def _blank(self, x: torch.Tensor) -> torch.Tensor:
        return torch.full((len(x), self.source.n), -torch.inf, dtype=self.round_to, device=x.device)

    def compare(self, x: torch.Tensor, stock_row: torch.Tensor) -> None:
        """Shadow: run the 2-bit path beside a stock row [m, >= n_valid] and count where they part. Synchronises where no
        CUDA kernel can count."""
        with ledger.host_clock(self.ledger, x.device):
            ids, exact = self.candidates(x, self.rerank)
        winners, _ = reference.best(ids, exact)
        drafted = stock_row[:, : self.n_valid] if self.vocab is None else stock_row[:, self.vocab.long()]
        truth = drafted.float().argmax(dim=1)
        truth = truth if self.vocab is None else self.vocab.long()[truth]
        self.ledger.compare(truth, winners, ids)

    @contextmanager
    def stock_clock(self, x: torch.Tensor) -> Iterator[None]:
        """Around the stock head of a call on x [m, k] that is compared: what to beat. Host time, so on a CPU only."""
        begin = time.perf_counter()
        yield
        if x.device.type == "cpu":
            took, stock = time.perf_counter() - begin, self.status.stock_latency
            stock.counts[bisect_left(stock.buckets, took)] += 1
            stock.sum_seconds += took

    def due_for_check(self, capturing: bool) -> bool:
        """True on 1 of `shadow_sample` eager calls; counted on the host. Never under capture: such a check synchronises.
        Never where the device checks by itself (check.py)."""
        if capturing or not self.shadow_sample or self.ledger.every:
            return False
        self._eager_calls += 1
        return self._eager_calls % self.shadow_sample == 0
