"""Real vLLM under CUDA graphs, where it is installed beside a GPU: sleep, wake and reload with a 2-bit draft head."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.gpu
ROOT = Path(__file__).parents[2]


@pytest.mark.skipif(importlib.util.find_spec("vllm") is None, reason="vLLM is not installed beside this GPU")
def test_an_engine_that_slept_drafts_as_well_as_before(tmp_path: Path) -> None:
    pairs = [sys.executable, "tests/bench/pairs.py", str(tmp_path), "--hidden", "1024", "--vocab", "32768"]
    subprocess.run(pairs, cwd=ROOT, check=True)
    done = subprocess.run(
        [sys.executable, "tests/gpu/sleeper.py", str(tmp_path / "eagle")],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])},
        capture_output=True, text=True, timeout=400, cwd=ROOT,
    )  # fmt: skip
    lines = [line for line in done.stdout.splitlines() if line.startswith("SEEN ")]
    assert lines, done.stdout[-3000:] + done.stderr[-3000:]
    seen = json.loads(lines[0].removeprefix("SEEN "))
    fresh = seen["fresh"]
    assert fresh["accepted"] > 0.4
    for after in ("slept_1", "slept_2"):
        assert seen[after]["output"] == fresh["output"]
        assert seen[after]["accepted"] == pytest.approx(fresh["accepted"], abs=0.02)
        assert seen[after]["state"] == "active"
    assert seen["slept_1"]["calls"] > fresh["calls"]
    assert seen["slept_2"]["calls"] > seen["slept_1"]["calls"]
