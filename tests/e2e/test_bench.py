"""tests/bench/serve.py on a real CPU vLLM, so that the scripts which need a GPU for their figures do not rot without one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.e2e import checkpoints
from tests.e2e.engine import ENVIRONMENT

pytestmark = pytest.mark.e2e
ROOT = Path(__file__).parents[2]
OPTIONS = {"attention_backend": None, "enforce_eager": True, "max_model_len": 256, "kv_cache_memory_bytes": 1 << 27}


def test_heads_generate_in_turns(tmp_path: Path) -> None:
    config, tensors, _ = checkpoints.qwen35(checkpoints.TINY, 6.0, 0, 0.05)
    (tmp_path / "target").mkdir()
    checkpoints.save(tmp_path / "target", config, tensors)
    result = tmp_path / "result.json"
    command = [sys.executable, "tests/bench/serve.py", str(tmp_path), "--method", "mtp", "--heads", "stock,fast:48",
               "--rounds", "3", "--prompts", "4", "--tokens", "16", "--options", json.dumps(OPTIONS), "--json", str(result)]  # fmt: skip
    done = subprocess.run(
        command, env={**os.environ, **ENVIRONMENT}, capture_output=True, text=True, timeout=400, cwd=ROOT
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert "fast:48, 16 sequences: " in done.stdout
    found = {head["head"]: head for head in json.loads(result.read_text())["heads"]}
    assert list(found) == ["stock", "fast:48"]
    for run, rounds in (("sequences_1", 3), ("sequences_16", 3), ("prompts_4", 1)):
        stock, fast = (found[head][run] for head in found)
        assert stock["output"] == fast["output"]
        assert len(stock["rounds"]) == len(fast["rounds"]) == rounds
        assert (fast["drafts"], fast["accepted_tokens"]) == (stock["drafts"], stock["accepted_tokens"])
    assert found["fast:48"]["sequences_16"]["head_calls"] > 0
    (head,) = found["fast:48"]["draft_head"]
    assert (head["state"], head["rank"], head["rerank"]) == ("active", 0, 48)
