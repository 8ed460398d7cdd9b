"""What lies where in a loaded engine: the target is untouched, the drafter's head is ours, `0` touches nothing."""

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
ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return checkpoints.tiny_qwen35(tmp_path_factory.mktemp("modules") / "target")


def look(target: Path, **environment: str) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, "-m", "tests.e2e.in_process", str(target)],
        cwd=ROOT,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=300,
    )
    lines = [line for line in done.stdout.splitlines() if line.startswith("SEEN ")]
    assert lines, done.stdout[-3000:] + done.stderr[-3000:]
    return dict(json.loads(lines[0].removeprefix("SEEN ")))


def test_the_drafter_gets_a_head_of_its_own_and_the_target_keeps_its(target: Path) -> None:
    seen = look(target, RADIANCE_FAST_DRAFT="1")
    assert seen["target_head"] == "ParallelLMHead"
    assert seen["drafter_head"] == "RadianceLMHead"
    assert not seen["same_object"]
    assert seen["source_is_target_head"]
    assert seen["same_storage"]
    assert seen["token_id_path"]
    # Eight more references to the target's head, in two drafters: the copy that is there serves them all.
    assert (seen["references"], seen["copies"], seen["more_bytes"]) == (8, 1, 0)
    assert len(seen["patched"]) == 7


@pytest.mark.parametrize("environment", [{"RADIANCE_FAST_DRAFT": "0"}, {}])
def test_off_touches_nothing(target: Path, environment: dict[str, str]) -> None:
    seen = look(target, **environment)
    assert seen["same_object"]
    assert seen["drafter_head"] == "ParallelLMHead"
    assert seen["patched"] == []
    assert not seen["token_id_path"]
    assert seen["modules"] == ["radiance", "radiance.errors", "radiance.settings"]


def test_a_wrong_setting_declines_inside_vllm_and_never_crashes_it(target: Path, tmp_path: Path) -> None:
    seen = look(target, RADIANCE_FAST_DRAFT="yes", RADIANCE_STATE_DIR=str(tmp_path))
    assert seen["same_object"]
    written = [json.loads(path.read_text()) for path in tmp_path.iterdir()]
    assert len(written) == 1
    assert "RADIANCE_FAST_DRAFT='yes'" in written[0]["problem"]
