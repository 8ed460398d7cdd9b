"""Eight drafter families on a real CPU vLLM: accepted as often as with the stock head, ids instead of rows."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.e2e
ROOT = Path(__file__).parents[2]
#: two processes. Families with experts come first in theirs: vLLM makes its groups for the first engine
PROCESSES = ("glm4_moe,deepseek,qwen3_next,mimo", "eagle,eagle3,dflash,draft_model")


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("families")
    kinds = "eagle,eagle3,dflash,mimo,glm4_moe,deepseek,qwen3_next"
    run("tests/bench/pairs.py", str(folder), "--kinds", kinds, "--hidden", "512", "--vocab", "4096")
    found: dict[str, Any] = {}
    with ThreadPoolExecutor(2) as pool:
        for output in pool.map(lambda families: run("-m", "tests.e2e.families", str(folder), families), PROCESSES):
            (line,) = [line for line in output.splitlines() if line.startswith("SEEN ")]
            found |= json.loads(line.removeprefix("SEEN "))
    return found


def run(*arguments: str) -> str:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}
    done = subprocess.run(
        [sys.executable, *arguments], env=environment, capture_output=True, text=True, timeout=600, cwd=ROOT
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return done.stdout


@pytest.mark.parametrize(
    ("family", "drafter", "least", "most"),
    [
        ("eagle", "EagleLlamaForCausalLM", 0.4, 0.9),
        (
            "eagle3",
            "Eagle3LlamaForCausalLM",
            0.15,
            0.33,
        ),  # the first draft of three can be right, if its vocabulary has it
        ("dflash", "DFlashQwen3ForCausalLM", 0.2, 0.33),  # the first of three can be right
        ("draft_model", "LlamaForCausalLM", 0.9, 1),
        ("mimo", "MiMoMTP", 0.5, 0.95),
        ("glm4_moe", "Glm4MoeMTP", 0.5, 0.95),
        ("deepseek", "DeepSeekMTP", 0.5, 0.95),
        ("qwen3_next", "Qwen3NextMTP", 0.5, 0.95),
    ],
)
def test_a_family_is_served_as_by_the_stock_head(
    seen: dict[str, Any], family: str, drafter: str, least: float, most: float
) -> None:
    fast, stock = seen[family]["fast"], seen[family]["stock"]
    assert (fast["drafter"], fast["state"]) == (drafter, "active")
    assert fast["ids"]
    assert fast["calls"] >= 12
    assert fast["stock_calls"] == 0
    # DFlash has no head of its own until vLLM shares the target's
    assert fast["lazy"] == (1 if family == "dflash" else 0)
    assert fast["tokens"] == stock["tokens"]
    assert (fast["accepted"], fast["drafted"]) == (stock["accepted"], stock["drafted"])
    assert least < fast["accepted"] / fast["drafted"] <= most
