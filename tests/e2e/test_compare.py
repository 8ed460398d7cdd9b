"""`radiance compare` on a real CPU vLLM: the constructed MTP checkpoint with the head off, on and in shadow."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from tests.e2e import checkpoints, harness

pytestmark = pytest.mark.e2e


def test_off_on_and_shadow_side_by_side(tmp_path: Path) -> None:
    target = checkpoints.tiny_qwen35(tmp_path / "target")
    # This tokenizer has no chat template; one that adds nothing makes a chat of one message the bare prompt.
    (tmp_path / "bare.jinja").write_text("{{ messages[0].content }}")
    args = {**harness.ARGS, "chat-template": str(tmp_path / "bare.jinja")}
    spec = {"method": "mtp", "num_speculative_tokens": 3}
    harness.write_profile(tmp_path, "tiny", target, spec, fast_draft="enabled", args=args)
    done = subprocess.run(
        [str(harness.BIN / "radiance"), "compare", "--profile", "tiny", "--profiles-dir", str(tmp_path), "--json",
         "--max-tokens", "48", "--at-once", "4"],
        env={**os.environ, "PATH": f"{harness.BIN}:{os.environ['PATH']}"}, capture_output=True, text=True, timeout=900,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-4000:]
    off, on, shadow = json.loads(done.stdout)["trials"]
    assert off["output"] == on["output"] == shadow["output"]
    for trial in (off, on, shadow):
        assert trial["tokens"] > 500
        assert trial["drafts"] >= 200
        assert 0.3 < trial["acceptance_per_draft"] < 2.9  # a drafter that is good but not perfect
    assert on["acceptance_per_draft"] == pytest.approx(off["acceptance_per_draft"], rel=0.02)
    assert shadow["acceptance_per_draft"] == pytest.approx(off["acceptance_per_draft"], rel=0.02)
    assert off["latency"] is None
    assert on["latency"]["calls"] > 0
    assert on["stock_latency"] is None
    # Only in shadow do both run: as many calls of one as of the other, but for one that was read in the middle.
    assert abs(shadow["stock_latency"]["calls"] - shadow["latency"]["calls"]) <= 2
    assert shadow["latency"]["calls"] > 10
    assert shadow["stock_latency"]["seconds"] > 0
    assert shadow["checked_rows"] > 0
    assert shadow["disagreed_rows"] <= 0.01 * shadow["checked_rows"]
