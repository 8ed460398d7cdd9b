"""The measured tables of the pages, from the results that were committed: `make docs` fills them in, a test compares them.

    python docs/figures.py      rewrite what stands between <!-- figures: NAME --> and <!-- /figures -->

A result measured again changes the pages with the same command, and no number there is typed by hand.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
RESULTS = "tests/bench/results"
PAGES = (ROOT / "README.md", ROOT / "docs" / "drafters.md")
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
    """Real vLLM with each draft head: speed from a run alone on its host, acceptance and output from one of more prompts.
    Equal letters: equal output; `output` is a hash of all token ids."""
    timed, runs = ({run["head"]: run for run in loaded(name)["heads"]} for name in ("h200-serve-profile", "h200-serve"))
    letters: dict[str, str] = {}
    rows = []
    for name, label in HEADS.items():
        speeds = [
            f"{timed[name][run]['tokens_per_second']:.0f}" if name in timed else "-"
            for run in ("sequences_1", "sequences_16")
        ]
        many = runs[name]["prompts_256"]
        accepted = f"{100 * many['accepted_tokens'] / many['draft_tokens']:.1f} %" if "drafts" in many else ""
        letter = letters.setdefault(many["output"], "ABCDE"[len(letters)])
        rows.append([label, *speeds, accepted, letter])
    return table(["draft head", "tokens/s, 1 sequence", "16 sequences", "drafts accepted", "output"], rows)


def acceptance() -> str:
    """Accepted of all draft tokens over 256 prompts, by head."""
    rows = []
    for name, label in (("h200-serve", "EAGLE"), ("h200-tp2", "EAGLE, two GPUs"), ("h200-v026", "EAGLE, vLLM 0.26.0"),
                        ("h200-mtp", "MTP, Qwen3.5")):  # fmt: skip
        runs = {run["head"]: run["prompts_256"] for run in loaded(name)["heads"] if run["head"] != "none"}
        share = {head: f"{100 * run['accepted_tokens'] / run['draft_tokens']:.2f} %" for head, run in runs.items()}
        rows.append(
            [label, *(share.get(head, "-") for head in ("stock", "fast", "coarse")), str(runs["fast"]["draft_tokens"])]
        )
    return table(["drafts accepted", "stock head", "2 bits with the rerank", "without it", "draft tokens"], rows)


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


FIGURES: dict[str, Callable[[], str]] = {
    "head": head, "serve": serve, "acceptance": acceptance, "quantise": quantise, "ranking": ranking,
}  # fmt: skip


def fill(page: str) -> str:
    """The page with every marked place filled in. Raises KeyError for a name that is not in FIGURES."""
    return re.sub(
        r"(<!-- figures: ([a-z]+) -->\n).*?(<!-- /figures -->)",
        lambda found: f"{found[1]}{FIGURES[found[2]]()}\n{found[3]}",
        page,
        flags=re.S,
    )


if __name__ == "__main__":
    for page in PAGES:
        page.write_text(fill(page.read_text()))
