"""The demo on a fake vLLM: what it prints, and that it fails when there is nothing to believe. The real one is `make demo`."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from serving import PATIENCE, profile_text

Demo = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def demo(fake_vllm: Path, profiles_dir: Path, model: Path, monkeypatch: pytest.MonkeyPatch) -> Demo:
    def run(fake: str = "", **change: Any) -> subprocess.CompletedProcess[str]:
        monkeypatch.setenv("FAKE_VLLM", fake)
        (profiles_dir / "tiny.yaml").write_text(profile_text(model, **change))
        argv = ["demo", "--profile", "tiny", "--profiles-dir", str(profiles_dir), "--vllm", str(fake_vllm)]
        return subprocess.run(
            [sys.executable, "-m", "launcher", *argv], capture_output=True, text=True, timeout=5 * PATIENCE
        )

    return run


def test_it_compares_both_heads_and_exits_0(demo: Demo) -> None:
    done = demo()
    assert done.returncode == 0, done.stdout + done.stderr
    # 24 chats of 10 drafts each; the warm-up's are not counted. The fake accepts 8, 7 and 5 of 10 at the positions.
    assert "acceptance_per_draft fast=2.000 stock=2.000 drafts_fast=240 drafts_stock=240 ratio=1.000" in done.stdout
    assert "identical answers: 24 of 24" in done.stdout
    assert "rank 0 lm_head: active" in done.stdout
    assert re.search(r"metrics http://127\.0\.0\.1:\d+/metrics", done.stdout)
    assert "make serve PROFILE=tiny" in done.stdout


def test_a_key_in_a_file_is_sent(demo: Demo, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "key").write_text("sk-0123456789\n")
    monkeypatch.setenv("VLLM_API_KEY", "")
    monkeypatch.setenv("VLLM_API_KEY_FILE", str(tmp_path / "key"))
    done = demo()
    assert done.returncode == 0, done.stdout + done.stderr
    assert "sk-0123456789" not in done.stdout + done.stderr


def test_a_head_that_is_not_active_fails_it(demo: Demo) -> None:
    done = demo("head=declined")
    assert done.returncode == 1
    assert "FAILED: the 2-bit head was not active: rank 0 lm_head: declined" in done.stdout


def test_too_few_drafts_fail_it(demo: Demo) -> None:
    done = demo("drafts=1")
    assert done.returncode == 1
    assert "FAILED: only 24 drafts" in done.stdout


def test_a_serve_that_dies_fails_it_and_shows_its_log(demo: Demo) -> None:
    done = demo("exit=3")
    assert done.returncode == 70
    assert "vLLM ended by itself" in done.stderr
