"""`radiance compare`: a profile with the draft head off, on and in shadow, on this machine, side by side.

What to believe: acceptance and output come from counters and texts. Tokens per second are of these prompts at this
concurrency. The latency of a head call is measured where the plugin has a clock (host on a CPU, device on a GPU); that of
the stock head only exists in shadow, where both run.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from launcher import smollm2, trial
from launcher.demo import PROMPTS, judge
from launcher.profiles import Profile
from launcher.trial import Say, Trial, Work
from radiance.settings import Mode

BAR = 40


@dataclass(frozen=True)
class Asked:
    """`repeat`: the prompts so many times over; several make the figures of a fast machine steadier."""

    modes: tuple[Mode, ...]
    prompts: Path | None
    max_tokens: int
    at_once: int
    repeat: int

    def work(self) -> Work:
        lines = self.prompts.read_text().splitlines() if self.prompts else PROMPTS
        return Work(tuple(line for line in lines if line.strip()) * self.repeat, self.max_tokens, self.at_once)


def run(profile: Profile, options: Sequence[str], asked: Asked, environ: Mapping[str, str], say: Say) -> list[Trial]:
    """One trial for each mode, one after the other. `options` go to `radiance serve`. Raises EngineDied."""
    if profile.model.embedded:
        smollm2.prepare(smollm2.folder(environ), say)
    command = [sys.executable, "-m", "launcher", "serve", "--profile", profile.name, *options]
    with tempfile.TemporaryDirectory(prefix="radiance-compare-") as logs:
        return [trial.run(command, mode, environ, Path(logs), asked.work(), say) for mode in asked.modes]


def faults(trials: Sequence[Trial]) -> list[str]:
    return judge(list(trials))


def to_json(profile: Profile, asked: Asked, trials: Sequence[Trial]) -> str:
    rows: list[dict[str, Any]] = []
    for one in trials:
        row = asdict(one) | {"mode": _word(one.mode), "output": one.output}
        row |= {"acceptance_per_draft": one.acceptance, "tokens_per_second": one.tokens_per_second}
        del row["texts"]
        rows.append(row)
    work = {"prompts": len(asked.work().prompts), "max_tokens": asked.max_tokens, "at_once": asked.at_once}
    return json.dumps({"profile": profile.name, "work": work, "trials": rows, "faults": faults(trials)}, indent=2)


def to_text(trials: Sequence[Trial]) -> str:
    """A table, and bars of tokens per second and of accepted tokens."""
    first = trials[0]
    head = (
        "head",
        "tok/s",
        "accepted/draft",
        "of drafted",
        "2-bit call",
        "stock call",
        "ready in",
        "output",
        "same texts",
    )
    rows = [head]
    for one in trials:
        same = sum(a == b for a, b in zip(one.texts, first.texts, strict=True))
        rate = one.accepted / one.draft_tokens if one.draft_tokens else 0.0
        rows.append(
            (_word(one.mode), f"{one.tokens_per_second:.1f}", f"{one.acceptance:.3f}", f"{rate:.1%}", _micro(one.latency),
             _micro(one.stock_latency), f"{one.seconds_to_ready:.0f} s", one.output, f"{same} of {len(one.texts)}")
        )  # fmt: skip
    widths = [max(len(row[i]) for row in rows) for i in range(len(head))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    lines += ["", *_bars("tokens/s", [(one.mode, one.tokens_per_second) for one in trials])]
    lines += ["", *_bars("accepted tokens per draft", [(one.mode, one.acceptance) for one in trials])]
    lines += [line for one in trials if (line := _checked(one))]
    return "\n".join(lines)


def _bars(title: str, values: Sequence[tuple[Mode, float]]) -> list[str]:
    most = max((value for _, value in values), default=0.0) or 1.0
    return [
        title,
        *(f"  {_word(mode):<7} {'#' * round(BAR * value / most):<{BAR}} {value:.2f}" for mode, value in values),
    ]


def _checked(one: Trial) -> str:
    if not one.checked_rows:
        return ""
    rows = one.checked_rows
    return (
        f"\nshadow: of {rows} draft rows {one.disagreed_rows} had another winner ({one.disagreed_rows / rows:.2%}), "
        f"{one.missed_rows} because it was no candidate ({one.missed_rows / rows:.2%}; a larger rerank finds it)"
    )


def _micro(latency: trial.Latency | None) -> str:
    return "-" if latency is None else f"{latency.seconds * 1e6:.0f} us ({latency.clock})"


def _word(mode: Mode) -> str:
    return mode.name.lower()
