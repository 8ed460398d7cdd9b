"""Tensor parallel 2 with two real CPU ranks: each packs its half of the vocabulary, and ranks that differ never hang."""

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
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return checkpoints.tiny_qwen35(tmp_path_factory.mktemp("parallel") / "target")


def run(target: Path, state: Path, *options: str, sabotage: str = "", fast: str = "1") -> dict[str, Any]:
    state.mkdir()
    paths = [str(HERE / "sabotage") if sabotage else "", str(HERE.parent.parent), os.environ.get("PYTHONPATH", "")]
    environment = {
        "RADIANCE_FAST_DRAFT": fast,
        "RADIANCE_STATE_DIR": str(state),
        "SABOTAGE": sabotage,
        "PYTHONPATH": os.pathsep.join(filter(None, paths)),
    }
    done = subprocess.run(
        [sys.executable, "-m", "tests.e2e.in_parallel", str(target), *options],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=500,
        cwd=HERE.parent.parent,
    )
    lines = [line for line in done.stdout.splitlines() if line.startswith("SEEN ")]
    assert lines, done.stdout[-3000:] + done.stderr[-3000:]
    return dict(json.loads(lines[0].removeprefix("SEEN ")))


@pytest.fixture(scope="module")
def stock(target: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    seen = run(target, tmp_path_factory.mktemp("stock") / "state", fast="0")["first"]
    assert seen["ranks"] == []
    assert 0.7 < seen["accepted"] < 1
    return dict(seen)


def test_ranks_share_the_head_and_survive_the_failure_of_one(
    target: Path, stock: dict[str, Any], tmp_path: Path
) -> None:
    """A rank that fails goes on with its stock head and does the same collectives: drafts stay as good."""
    seen = run(target, tmp_path / "state", "--fail")
    half = checkpoints.VOCAB // 2
    assert [r["rank"] for r in seen["first"]["ranks"]] == [0, 1]
    for rank in seen["first"]["ranks"]:
        ((state, _, n, calls),) = rank["heads"]
        assert (state, n) == ("active", half)
        assert calls > 30
    assert seen["first"]["tokens"] == stock["tokens"]
    assert seen["first"]["accepted"] == stock["accepted"]
    assert [r["heads"][0][:2] for r in seen["failing"]["ranks"]] == [["active", ""], ["declined", "call_failed"]]
    assert seen["failing"]["tokens"] == stock["tokens"]
    assert seen["failing"]["accepted"] == stock["accepted"]


def test_if_one_rank_cannot_all_keep_the_stock_head(target: Path, stock: dict[str, Any], tmp_path: Path) -> None:
    seen = run(target, tmp_path / "state", sabotage="pack-rank1")["first"]
    reasons = [r["heads"][0][:2] for r in seen["ranks"]]
    assert reasons == [["declined", "ranks_disagree"], ["declined", "packing_failed"]]
    assert seen["tokens"] == stock["tokens"]
    assert seen["accepted"] == stock["accepted"]
