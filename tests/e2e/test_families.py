"""EAGLE, DFlash and a whole draft model on a real CPU vLLM: accepted as often as with the stock head, ids instead of rows."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.e2e
ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("families")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}
    sizes = ["--hidden", "512", "--vocab", "4096"]
    for command in (
        [sys.executable, "tests/bench/pairs.py", str(folder), "--kinds", "eagle,dflash", *sizes],
        [sys.executable, "-m", "tests.e2e.families", str(folder)],
    ):
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=500, cwd=ROOT)
        assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    lines = [line for line in done.stdout.splitlines() if line.startswith("SEEN ")]
    return dict(json.loads(lines[0].removeprefix("SEEN ")))


@pytest.mark.parametrize(
    ("family", "least", "most"), [("eagle", 0.4, 0.9), ("dflash", 0.2, 0.33), ("draft_model", 0.9, 1)]
)
def test_a_family_is_served_as_by_the_stock_head(seen: dict[str, Any], family: str, least: float, most: float) -> None:
    fast, stock = seen[family]["fast"], seen[family]["stock"]
    assert fast["state"] == "active"
    assert fast["ids"]
    assert fast["calls"] >= 12
    assert fast["lazy"] == (
        1 if family == "dflash" else 0
    )  # DFlash has no head of its own until vLLM shares the target's
    assert fast["tokens"] == stock["tokens"]
    assert (fast["accepted"], fast["drafted"]) == (stock["accepted"], stock["drafted"])
    assert least < fast["accepted"] / fast["drafted"] <= most
