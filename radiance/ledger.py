"""The counters of one head: int64 words that its kernels add to, in replayed graphs too.

The layout below is the only one; kernels/ledger.cuh gets it from defines(). A call adds its words when its last row is
answered. Whoever reads them does not wait for the device (kernels/board.py).
"""

from __future__ import annotations

import time
from bisect import bisect_left
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

import torch

from radiance import tuning
from radiance.errors import UnsupportedHead
from radiance.kernels import build
from radiance.kernels.board import Board
from radiance.status import LATENCY_BUCKETS, STOCK_REASONS, HeadStatus

CALLS, ROWS, RESCUED, NANOSECONDS = range(4)
#: calls by latency, one word a bucket and one beyond the last
HISTOGRAM = 4
#: rows compared with the stock head, with another winner, and whose true winner was no candidate
CHECKED = HISTOGRAM + len(LATENCY_BUCKETS) + 1
#: calls of the stock head, a word a reason
STOCK = CHECKED + 3
SIZE = STOCK + len(STOCK_REASONS)
#: behind them what check.cu keeps: calls so far, and two words of its own
STATE = SIZE


@dataclass
class Ledger:
    """`words` int64 [SIZE + 3]: on the device (`board`) where CUDA kernels write them, else in host memory, pinned for a
    GPU. One row of 1 in `every` calls is checked against the whole head (check.py); 0: none."""

    words: torch.Tensor
    board: Board | None = None
    every: int = 0
    #: stock calls that Python saw, by reason
    seen: dict[str, int] = field(default_factory=lambda: dict.fromkeys(STOCK_REASONS, 0))

    def read(self) -> list[int]:
        """All words; on a device that does not answer, what was last read."""
        return self.words.tolist() if self.board is None else self.board.read()

    def state(self) -> torch.Tensor | None:
        """int64 [3] of check.cu, if it has work."""
        return self.words[STATE:] if self.every else None

    def count_stock(self, reason: str) -> None:
        """A call for the stock head; one that is being captured is counted whenever its graph is replayed."""
        if self.board is not None and torch.cuda.is_current_stream_capturing():
            word = STOCK + STOCK_REASONS.index(reason if reason in STOCK_REASONS else "declined")
            build.launch(_kernel("count", self.words.device), (1, 1), 1, 0, (build.pointer(self.words[word:]),))
        else:
            self.seen[reason] = self.seen.get(reason, 0) + 1

    def compare(self, truth: torch.Tensor, winners: torch.Tensor, ids: torch.Tensor) -> None:
        """Count how winners int64 [m], the best of candidates int64 [m, r], part from the true ones. Synchronises where no
        CUDA kernel can count."""
        m, r = ids.shape
        if self.board is None:
            missed = (ids != truth[:, None]).all(dim=1).sum()
            self.words[CHECKED:STOCK] += torch.stack((torch.tensor(m), (winners != truth).sum().cpu(), missed.cpu()))
            return
        args = (build.pointer(truth), build.pointer(winners), build.pointer(ids), build.integer(m), build.integer(r),
                build.pointer(self.words[CHECKED:]))  # fmt: skip
        build.launch(_kernel("tally", ids.device), (-(-m // 128), 1), 128, 0, args)

    def into(self, status: HeadStatus) -> None:
        """Bring the counters into a head's status. No synchronisation."""
        words = self.read()
        status.calls, status.rows, status.rescued_rows = words[:NANOSECONDS]
        status.latency.sum_seconds, status.latency.counts = words[NANOSECONDS] * 1e-9, words[HISTOGRAM:CHECKED]
        status.checked_rows, status.disagreed_rows, status.missed_rows = words[CHECKED:STOCK]
        replayed = dict(zip(STOCK_REASONS, words[STOCK:SIZE], strict=True))
        status.stock_calls = {reason: count + replayed.get(reason, 0) for reason, count in self.seen.items()}


def make(device: torch.device, every: int = 0) -> Ledger:
    """An empty ledger for a head on `device`. Checks need CUDA kernels."""
    if device.type == "cuda" and torch.version.hip is None and tuning.device(device).capability >= (8, 0):
        with suppress(UnsupportedHead):  # no bindings of NVIDIA's: the head declines when it builds its kernels
            board = Board(SIZE + 3, device)
            warm(device)  # a head that declines at once still counts its stock calls, in captures too
            return Ledger(board.words, board, every)
    return Ledger(torch.zeros(SIZE + 3, dtype=torch.int64, pin_memory=device.type == "cuda"))


def defines() -> dict[str, int | str]:
    """What kernels/ledger.cuh is compiled with."""
    edges = ",".join(f"{round(edge * 1e9)}ull" for edge in LATENCY_BUCKETS)
    return {"HISTOGRAM": HISTOGRAM, "CHECKED": CHECKED, "EDGES": edges}


def warm(where: torch.device) -> None:
    """Build what count_stock() and compare() launch: before any capture."""
    for entry in ("count", "tally"):
        _kernel(entry, where)


@contextmanager
def host_clock(ledger: Ledger, device: torch.device) -> Iterator[None]:
    """Adds the host time of one call that succeeds. Only on a CPU: a GPU's call returns before it is done, and Python does
    not run when a graph is replayed; there the kernels tell the time."""
    begin = time.perf_counter()
    yield
    if device.type == "cpu":
        took = time.perf_counter() - begin
        ledger.words[NANOSECONDS] += round(took * 1e9)
        ledger.words[HISTOGRAM + bisect_left(LATENCY_BUCKETS, took)] += 1


def _kernel(entry: str, where: torch.device) -> build.Kernel:
    return build.kernel("count", entry, {}, where, tuning.device(where).arch)
