"""Real vLLM under CUDA graphs, where it is installed beside a GPU: sleep, wake and reload with a 2-bit draft head."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.gpu
ROOT = Path(__file__).parents[2]


@pytest.mark.skipif(importlib.util.find_spec("vllm") is None, reason="vLLM is not installed beside this GPU")
def test_an_engine_that_slept_drafts_as_well_as_before(tmp_path: Path) -> None:
    pairs = [sys.executable, "tests/bench/pairs.py", str(tmp_path), "--hidden", "1024", "--vocab", "32768"]
    subprocess.run(pairs, cwd=ROOT, check=True)
    stock, fast = (seen(tmp_path / "eagle", head) for head in ("stock", "fast"))
    assert fast["fresh"]["accepted"] > 0.4
    for phase in ("fresh", "slept_1", "slept_2"):
        assert fast[phase]["output"] == stock[phase]["output"] == stock["fresh"]["output"]
        assert fast[phase]["accepted"] == pytest.approx(stock[phase]["accepted"], abs=0.02)
        assert fast[phase]["accepted"] == pytest.approx(fast["fresh"]["accepted"], abs=0.02)
        assert fast[phase]["state"] == "active"
    assert fast["fresh"]["calls"] < fast["slept_1"]["calls"] < fast["slept_2"]["calls"]
    assert [fast[phase]["repacked"] for phase in ("fresh", "slept_1", "slept_2")] == [0, 0, 1]


def seen(pair: Path, head: str) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, "tests/gpu/sleeper.py", str(pair), head],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])},
        capture_output=True, text=True, timeout=300, cwd=ROOT,
    )  # fmt: skip
    lines = [line for line in done.stdout.splitlines() if line.startswith("SEEN ")]
    assert lines, done.stdout[-3000:] + done.stderr[-3000:]
    found: dict[str, Any] = json.loads(lines[0].removeprefix("SEEN "))
    return found
