"""Accepted tokens per draft, exactly, from counters vLLM already has. Pure arithmetic.

vLLM counts D drafts and, for each position k (from 0), the drafts P[k] in which the token there was accepted. A draft is
accepted up to its first refusal, so P[k] is the number of drafts with at least k+1 accepted tokens, and

    drafts with at most k accepted tokens  =  D - P[k]        the bucket le=k of a Prometheus histogram
    all drafts                             =  D               the bucket le=+Inf
    accepted tokens                        =  sum over k of P[k]

No hook and no cost in a step: the same histogram as one that looked at every draft. D and P must come from one scrape;
data-parallel engines are summed first.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import zip_longest

PREFIX = "vllm:spec_decode_"
#: fewer say little: a mean over them is not compared with anything. RadianceAcceptanceCollapsed uses the same number
ENOUGH_DRAFTS = 200
Sample = tuple[str, Mapping[str, str], float]


@dataclass(frozen=True)
class Acceptance:
    drafts: int = 0
    draft_tokens: int = 0
    accepted_tokens: int = 0
    #: P[k]
    per_position: tuple[int, ...] = ()
    #: bucket counts that were shown before; none may fall below
    shown: tuple[int, ...] = ()

    @property
    def per_draft(self) -> float | None:
        """Mean accepted tokens of a draft (the bonus token of the target is not one); None before the first draft."""
        return self.accepted_tokens / self.drafts if self.drafts else None

    def buckets(self) -> list[tuple[str, int]]:
        """(le, cumulative count). vLLM renders its counters one after the other, so a step may fall between two of them: what
        must not be negative or fall is held, and the next scrape is right again."""
        cumulative, floor = [], 0
        for k, reached in enumerate(self.per_position):
            shown = self.shown[k] if k < len(self.shown) else 0
            floor = min(max(floor, self.drafts - reached, shown), self.drafts)
            cumulative.append((f"{k}.0", floor))
        return [*cumulative, ("+Inf", self.drafts)]

    def at_least(self, other: Acceptance) -> Acceptance:
        """The larger of both, figure by figure."""
        return Acceptance(
            max(self.drafts, other.drafts),
            max(self.draft_tokens, other.draft_tokens),
            max(self.accepted_tokens, other.accepted_tokens),
            tuple(map(max, zip_longest(self.per_position, other.per_position, fillvalue=0))),
        )

    def __add__(self, other: Acceptance) -> Acceptance:
        positions = zip_longest(self.per_position, other.per_position, fillvalue=0)
        return Acceptance(
            self.drafts + other.drafts,
            self.draft_tokens + other.draft_tokens,
            self.accepted_tokens + other.accepted_tokens,
            tuple(a + b for a, b in positions),
        )


class Keeper:
    """Sums over the lives of vLLM: a new one counts from 0, what we show goes on. `depth` positions exist from the start."""

    def __init__(self, depth: int) -> None:
        self._ended = Acceptance(per_position=(0,) * depth)
        self._now = Acceptance()
        self._life = 0
        self.total = self._ended

    def see(self, found: Acceptance, life: int) -> None:
        """Take one scrape of vLLM number `life`. Within a life nothing falls: less than before is a scrape that lacks a part."""
        if life != self._life:
            self._ended, self._life, self._now = self._ended + self._now, life, Acceptance()
        self._now = found = self._now.at_least(found)
        total = self._ended + found
        shown = tuple(count for _, count in self.total.buckets()[:-1])
        self.total = Acceptance(total.drafts, total.draft_tokens, total.accepted_tokens, total.per_position, shown)


class Stall:
    """Work but no progress: is vLLM wedged? A server without requests makes no progress either and is fine."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._progress: tuple[int, float] | None = None
        self._moved = 0.0

    def see(self, now: float, life: int, running: float, progress: float) -> bool:
        """`now` is any clock in seconds that only grows; `progress` any figure that changes with every engine step."""
        if running <= 0 or (life, progress) != self._progress:
            self._progress, self._moved = (life, progress), now
        return now - self._moved >= self._seconds


class Floor:
    """Has acceptance stayed under a floor? Looked at in pieces of `drafts` drafts, so that a few unlucky ones decide nothing."""

    def __init__(self, floor: float, seconds: float, drafts: int = ENOUGH_DRAFTS) -> None:
        self._floor, self._seconds, self._drafts = floor, seconds, drafts
        self._begin: tuple[float, Acceptance] | None = None
        #: since when every piece was under it
        self._under: float | None = None

    def see(self, now: float, found: Acceptance) -> bool:
        """`now` is any clock in seconds that only grows. True: every piece of the last `seconds` was under the floor."""
        if self._begin is None:
            self._begin = now, found
        since, before = self._begin
        drafts = found.drafts - before.drafts
        if drafts < self._drafts:
            return False
        self._begin = now, found
        if (found.accepted_tokens - before.accepted_tokens) / drafts >= self._floor:
            self._under = None
            return False
        self._under = since if self._under is None else self._under
        return now - self._under >= self._seconds


def from_samples(samples: Iterable[Sample]) -> Acceptance | None:
    """Sum over engines and models. None when vLLM exports no such counters (speculation or its statistics are off)."""
    totals = dict.fromkeys(("num_drafts", "num_draft_tokens", "num_accepted_tokens"), 0.0)
    positions: dict[int, float] = {}
    seen = False
    for name, labels, value in samples:
        if not name.startswith(PREFIX) or not name.endswith("_total"):
            continue
        short = name.removeprefix(PREFIX).removesuffix("_total")
        if short in totals:
            totals[short] += value
            seen = True
        elif short == "num_accepted_tokens_per_pos":
            k = int(labels["position"])
            positions[k] = positions.get(k, 0.0) + value
    if not seen:
        return None
    per_position = tuple(int(positions.get(k, 0.0)) for k in range(max(positions, default=-1) + 1))
    return Acceptance(
        int(totals["num_drafts"]), int(totals["num_draft_tokens"]), int(totals["num_accepted_tokens"]), per_position
    )
