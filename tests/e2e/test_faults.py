"""What may happen to an engine that has a 2-bit draft head: another engine, new weights, a head taken away, a seam gone."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.e2e import checkpoints

pytestmark = pytest.mark.e2e
HERE = Path(__file__).parent


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("faults")
    checkpoints.tiny_qwen35(made / "target")
    checkpoints.tiny_qwen35(made / "other", seed=1)
    return made


def run(folder: Path, *options: str, **environment: str) -> tuple[dict[str, Any], str]:
    done = subprocess.run(
        [sys.executable, "-m", "tests.e2e.faults", str(folder), *options],
        cwd=HERE.parents[1],
        env={**os.environ, "RADIANCE_STATE_DIR": str(folder), **environment},
        capture_output=True,
        text=True,
        timeout=500,
    )
    lines = [line for line in done.stdout.splitlines() if line.startswith("SEEN ")]
    assert lines, done.stdout[-3000:] + done.stderr[-3000:]
    return json.loads(lines[0].removeprefix("SEEN ")), done.stdout + done.stderr


@pytest.fixture(scope="module")
def seen(folder: Path) -> dict[str, Any]:
    return run(folder, RADIANCE_FAST_DRAFT="1")[0]


def test_two_engines_in_one_process_keep_their_own_heads(seen: dict[str, Any]) -> None:
    assert [h["state"] for h in seen["second"]["heads"]] == ["active", "active"]
    assert seen["second"]["tokens"] != seen["first"]["tokens"]
    assert seen["second"]["accepted"] > 0.7
    assert seen["first_again"]["tokens"] == seen["first"]["tokens"]
    assert seen["first_again"]["accepted"] == seen["first"]["accepted"] > 0.7


def test_reloaded_weights_are_packed_again(seen: dict[str, Any]) -> None:
    """The first engine now holds the second one's weights: its answers, and drafts that are accepted as often."""
    assert seen["reloaded"]["tokens"] == seen["second"]["tokens"]
    assert [h["repacked"] for h in seen["reloaded"]["heads"]] == [1, 0]
    assert seen["reloaded"]["accepted"] > 0.7  # 0 with the packed copy of the old head


def test_a_head_that_is_replaced_after_load_is_just_stock(seen: dict[str, Any]) -> None:
    assert seen["replaced"]["tokens"] == seen["reloaded"]["tokens"]
    assert seen["replaced"]["accepted"] > 0.7
    assert len(seen["replaced"]["heads"]) == 1  # ours has left the snapshot with its module


def test_a_missing_seam_is_named_and_the_stock_head_serves(folder: Path, seen: dict[str, Any]) -> None:
    """As if a new vLLM had moved load_model to a base class."""
    without, log = run(
        folder, "--one", RADIANCE_FAST_DRAFT="1", SABOTAGE="seam", PYTHONPATH=_path(str(HERE / "sabotage"))
    )
    assert without["first"]["tokens"] == seen["first"]["tokens"]
    assert without["first"]["heads"] == []
    assert "SpecDecodeBaseProposer.load_model is not there" in log
    assert "SpecDecodeBaseProposer.load_model" in without["first"]["problem"]


def _path(first: str) -> str:
    return os.pathsep.join(filter(None, [first, os.environ.get("PYTHONPATH", "")]))
