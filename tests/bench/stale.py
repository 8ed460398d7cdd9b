"""Warn when a figure measured on a GPU is older than the code it speaks of: python tests/bench/stale.py

No CI machine has the GPU, so this never fails a build; it says which results to measure again, and with what command.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
#: git pathspecs of what a result depends on
PARTS = ("head", "lifecycle", "ledger", "coarse", "shortlist", "rerank", "rows", "tuning")
HEAD = [*(f"radiance/{part}*" for part in PARTS), "radiance/kernels"]
DEPENDS = {
    "h200": HEAD,
    **{
        f"h200-{run}": [*HEAD, "radiance/hook*"]
        for run in ("serve", "deep", "dflash2", "mtp", "next", "tp2", "v026", "kv", "distribution")
    },
    "h200-quantise": ["radiance/quantise*", "radiance/feedback*", "radiance/rotation*", "radiance/pack*"],
}
#: more changed files than these are only counted
SHOWN = 4


def watched(result: str) -> list[str]:
    """The pathspecs of the longest name in DEPENDS that a result's file name begins with."""
    return DEPENDS[max((name for name in DEPENDS if result.startswith(name)), key=len)]


def warnings(root: Path = ROOT) -> Iterator[tuple[str, str]]:
    """(file, what is wrong with it) for each tests/bench/results/h200*.json. Compares with the working tree."""
    for path in sorted((root / "tests/bench/results").glob("h200*.json")):
        result = json.loads(path.read_text())
        name, commit, command = str(path.relative_to(root)), result["commit"], result["command"]
        measured = commit.removesuffix("-dirty")
        done = subprocess.run(
            ["git", "-C", str(root), "diff", "--name-only", measured, "--", *watched(path.stem)],
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            yield name, f"names no commit of this checkout ({commit!r}), so nobody can say whether it is old"
        elif commit != measured:
            yield name, f"was measured on {measured[:12]} with uncommitted changes; measure again: {command}"
        elif changed := done.stdout.split():
            more = f" and {len(changed) - SHOWN} more" if len(changed) > SHOWN else ""
            what = f"changed since: {', '.join(changed[:SHOWN])}{more}"
            yield name, f"was measured on {commit[:12]}; {what}; measure again: {command}"


if __name__ == "__main__":
    for file, text in warnings():
        print(f"::warning file={file}::{text}" if os.environ.get("GITHUB_ACTIONS") else f"warning: {file} {text}")
