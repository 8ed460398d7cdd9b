"""The measured tables of the pages, from the results that were committed: `make docs` fills them in, a test compares them.

    python docs/figures.py      rewrite what stands between <!-- figures: NAME --> and <!-- /figures -->

A result measured again changes the pages with the same command, and no number there is typed by hand.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from typing import Any

ROOT = Path(__file__).parents[1]
RESULTS = "tests/bench/results"
PAGES = (ROOT / "README.md", ROOT / "docs" / "drafters.md", ROOT / "docs" / "kernels.md")
#: the draft head of a 27B Qwen at TP=2
SHAPE = (124160, 5120)
ROWS = (1, 8, 16, 32, 64, 128)
HEADS = {
    "none": "no speculation",
    "stock": "stock bf16",
    "fp8": "vLLM's `draft_lm_head_quantization: fp8`",
    "coarse": "2 bits without the rerank",
    "fast": "**2 bits with the rerank**",
    "fast:64": "2 bits, 64 candidates",
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


def us(
    rows: Sequence[dict[str, Any]], m: int, path: str, stage: str = "whole", shape: tuple[int, int] = SHAPE
) -> float:
    (found,) = [
        r["us"] for r in rows if (r["n"], r["k"]) == shape and (r["m"], r["path"], r["stage"]) == (m, path, stage)
    ]
    return float(found)


def head() -> str:
    """hidden -> token ids at SHAPE: stock, fp8, ours, in microseconds."""
    rows = loaded("h200")["rows"]
    ours, stock = [us(rows, m, "cuda") for m in ROWS], [us(rows, m, "stock") for m in ROWS]
    return table(
        ["draft rows", *map(str, ROWS)],
        [
            ["stock bf16 (us)", *(f"{value:.0f}" for value in stock)],
            ["fp8 (us)", *(f"{us(rows, m, 'fp8'):.0f}" for m in ROWS)],
            ["**2-bit + rerank (us)**", *(f"**{value:.0f}**" for value in ours)],
            ["times stock", *(f"{a / b:.1f}" for a, b in zip(stock, ours, strict=True))],
        ],
    )


def portable() -> str:
    """The Triton path at SHAPE, in microseconds, stage by stage."""
    rows = loaded("h200-triton")["rows"]
    ours, stock = [us(rows, m, "triton") for m in ROWS], [us(rows, m, "stock") for m in ROWS]
    shares = {
        r["m"]: r["read_share"]
        for r in rows
        if (r["n"], r["k"]) == SHAPE and (r["path"], r["stage"]) == ("triton", "coarse")
    }
    stages = {"rotate+coarse": "rotate + coarse", "select": "select alone", "rerank": "rerank alone"}
    return table(
        ["H200, 124160 x 5120, us", *(f"M={m}" if m == 1 else str(m) for m in ROWS)],
        [
            ["stock: linear + argmax", *(f"{value:.0f}" for value in stock)],
            ["**whole path**", *(f"**{value:.1f}**" for value in ours)],
            ["x stock", *(f"{a / b:.1f}" for a, b in zip(stock, ours, strict=True))],
            ["coarse alone", *(f"{us(rows, m, 'triton', 'coarse'):.1f}" for m in ROWS)],
            ["share of the read bandwidth", *(f"{100 * shares[m]:.0f} %" for m in ROWS)],
            *([label, *(f"{us(rows, m, 'triton', stage):.1f}" for m in ROWS)] for stage, label in stages.items()),
        ],
    )


def rerank() -> str:
    """What more candidates cost a call, in microseconds of the whole path at 248320 x 5120, and what they bring."""
    runs = [loaded(f"h200-rerank-{r}") for r in (32, 48, 64)]
    deep = {run["head"]: run for run in loaded("h200-deep")["heads"]}
    rows = [["stock head", *(f"{us(runs[0]['rows'], m, 'stock', shape=(248320, 5120)):.0f}" for m in (1, 4, 16, 64)),
             accepted(deep, "stock", 2)]]  # fmt: skip
    for run in runs:
        times = [f"{us(run['rows'], m, 'cuda', shape=(248320, 5120)):.1f}" for m in (1, 4, 16, 64)]
        name = "fast" if run["rerank"] == 32 else f"fast:{run['rerank']}"
        rows.append([f"r = {run['rerank']}", *times, accepted(deep, name, 2)])
    return table(["us a call", "1 row", "4", "16", "64", "drafts accepted"], rows)


def serve() -> str:
    """Real vLLM with each draft head, medians of rounds in turns behind a target of 16 layers; what is accepted over 256 prompts,
    there or, for heads that were not run there, behind one of two. Equal letters: equal output; `output` is a hash of all tokens."""
    deep, flat = ({run["head"]: run for run in loaded(name)["heads"]} for name in ("h200-deep", "h200-serve"))
    letters: dict[str, str] = {}
    rows = []
    for name, label in HEADS.items():
        speeds = []
        for run in ("sequences_1", "sequences_16"):
            speed = "-"
            if name in deep:
                times = median(
                    a / b for a, b in zip(deep[name][run]["rounds"], deep["stock"][run]["rounds"], strict=True)
                )
                speed = f"{deep[name][run]['tokens_per_second']:.0f} ({times:.2f} x)"
            speeds.append(speed)
        letter = letters.setdefault(deep.get(name, flat.get(name))["prompts_256"]["output"], "ABCDE"[len(letters)])
        rows.append([label, *speeds, accepted(deep, name), accepted(flat, name), letter])
    return table(
        ["draft head", "tokens/s, 1 sequence", "16 sequences", "drafts accepted", "two layers", "output"], rows
    )


def accepted(runs: dict[str, Any], head: str, digits: int = 1) -> str:
    many = runs.get(head, {}).get("prompts_256", {})
    return f"{100 * many['accepted_tokens'] / many['draft_tokens']:.{digits}f} %" if "drafts" in many else "-"


def acceptance() -> str:
    """Accepted of all draft tokens over 256 prompts, by head."""
    rows = []
    for name, label in (("h200-serve", "EAGLE"), ("h200-deep", "EAGLE, 16 layers"), ("h200-tp2", "EAGLE, two GPUs"),
                        ("h200-v026", "EAGLE, vLLM 0.26.0"), ("h200-mtp", "MTP, Qwen3.5"), ("h200-dflash2", "DFlash2")):  # fmt: skip
        runs = {run["head"]: run for run in loaded(name)["heads"]}
        drafted = str(runs["fast"]["prompts_256"]["draft_tokens"])
        rows.append([label, *(accepted(runs, head, 2) for head in ("stock", "fast", "coarse")), drafted])
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
    "head": head, "portable": portable, "rerank": rerank, "serve": serve, "acceptance": acceptance, "quantise": quantise,
    "ranking": ranking,
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
