"""The measured tables of README.md, from the results that were committed: `make docs` fills them in, a test compares them.

    python docs/figures.py      rewrite what stands between <!-- figures: NAME --> and <!-- /figures --> in README.md

A result measured again changes the README with the same command, and no number there is typed by hand.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
RESULTS = "tests/bench/results"
#: the draft head of a 27B Qwen at TP=2
SHAPE = (124160, 5120)
ROWS = (1, 8, 16, 32, 64, 128)
HEADS = {
    "none": "no speculation",
    "stock": "stock bf16",
    "fp8": "vLLM's `draft_lm_head_quantization: fp8`",
    "coarse": "2 bits without the rerank",
    "fast": "**2 bits with the rerank**",
}
SCHEMES = {
    "minmax": "asymmetric min/max, the usual codes",
    "quarter": "**Radiance, no calibration data**",
    "calibrated": "Radiance, hidden states of other text",
}


def loaded(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((ROOT / RESULTS / f"{name}.json").read_text())
    return found


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---", *["--:"] * (len(head) - 1)], *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def head() -> str:
    """hidden -> token ids at SHAPE: stock, fp8, ours, in microseconds."""
    rows = loaded("h200")["rows"]

    def us(path: str, m: int) -> float:
        (found,) = [
            r["us"] for r in rows if (r["n"], r["k"]) == SHAPE and (r["m"], r["path"], r["stage"]) == (m, path, "whole")
        ]
        return float(found)

    ours, stock = [us("cuda", m) for m in ROWS], [us("stock", m) for m in ROWS]
    return table(
        ["draft rows", *map(str, ROWS)],
        [
            ["stock bf16 (us)", *(f"{value:.0f}" for value in stock)],
            ["fp8 (us)", *(f"{us('fp8', m):.0f}" for m in ROWS)],
            ["**2-bit + rerank (us)**", *(f"**{value:.0f}**" for value in ours)],
            ["times stock", *(f"{a / b:.1f}" for a, b in zip(stock, ours, strict=True))],
        ],
    )


def serve() -> str:
    """Real vLLM with each draft head. Equal letters: equal output; `output` is a hash of all token ids."""
    runs = {run["head"]: run for run in loaded("h200-serve")["heads"]}
    letters: dict[tuple[str, str], str] = {}
    rows = []
    for name, label in HEADS.items():
        one, many = runs[name]["sequences_1"], runs[name]["sequences_16"]
        accepted = " / ".join(
            f"{100 * r['accepted_tokens'] / r['draft_tokens']:.1f} %" for r in (one, many) if "drafts" in r
        )
        output = (one["output"], many["output"])
        letter = letters.setdefault(output, "ABCDE"[len(letters)])
        rows.append([label, f"{one['tokens_per_second']:.0f}", f"{many['tokens_per_second']:.0f}", accepted, letter])
    return table(["draft head", "tokens/s, 1 sequence", "16 sequences", "drafts accepted (1 / 16)", "output"], rows)


def quantise() -> str:
    cost = loaded("h200-quantise")["cost"][0]
    return (
        f"The packed copy of a {cost['n']} x {cost['k']} head takes {cost['packed_mib'] / 1024:.2f} GiB beside its "
        f"{cost['n'] * cost['k'] * 2 / 2**30:.2f} GiB.\nMaking it takes {cost['second_seconds']:.1f} s, "
        f"{cost['first_seconds']:.1f} s with the libraries' own start, and {cost['second_peak_mib_beyond_packed']:.0f} MiB "
        "for that time."
    )


def ranking() -> str:
    """How often the exact winner is among the r candidates."""
    found = {scheme["scheme"]: scheme for scheme in loaded("accuracy-smollm2")["schemes"]}
    wanted = (8, 32, 128)
    rows = []
    for name, label in SCHEMES.items():
        inside = dict(zip(found[name]["reranks"], found[name]["inside"], strict=True))
        rows.append([label, *(f"{100 * inside[r] / found[name]['positions']:.1f} %" for r in wanted)])
    return table(["two bits a weight", *(f"r = {r}" for r in wanted)], rows)


FIGURES: dict[str, Callable[[], str]] = {"head": head, "serve": serve, "quantise": quantise, "ranking": ranking}


def fill(page: str) -> str:
    """The page with every marked place filled in. Raises KeyError for a name that is not in FIGURES."""
    return re.sub(
        r"(<!-- figures: ([a-z]+) -->\n).*?(<!-- /figures -->)",
        lambda found: f"{found[1]}{FIGURES[found[2]]()}\n{found[3]}",
        page,
        flags=re.S,
    )


if __name__ == "__main__":
    readme = ROOT / "README.md"
    readme.write_text(fill(readme.read_text()))
