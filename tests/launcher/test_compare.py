"""`radiance compare` on a fake vLLM: what it starts, what it counts, what it refuses. The real one is in tests/e2e."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from serving import PATIENCE, profile_text

from launcher import compare
from launcher.cli import main
from launcher.trial import Latency, Trial
from radiance.settings import Mode

Compare = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def compared(fake_vllm: Path, profiles_dir: Path, model: Path, monkeypatch: pytest.MonkeyPatch) -> Compare:
    def run(*options: str, fake: str = "", **change: Any) -> subprocess.CompletedProcess[str]:
        monkeypatch.setenv("FAKE_VLLM", fake)
        (profiles_dir / "tiny.yaml").write_text(profile_text(model, **change))
        argv = ["compare", "--profile", "tiny", "--profiles-dir", str(profiles_dir), "--vllm", str(fake_vllm), *options]
        return subprocess.run(
            [sys.executable, "-m", "launcher", *argv], capture_output=True, text=True, timeout=5 * PATIENCE
        )

    return run


def test_three_modes_are_served_and_counted(compared: Compare, tmp_path: Path) -> None:
    done = compared("--json", "--set", "max_num_seqs=5")
    assert done.returncode == 0, done.stderr
    value = json.loads(done.stdout)
    assert value["work"] == {"prompts": 24, "max_tokens": 112, "at_once": 8}
    assert [trial["mode"] for trial in value["trials"]] == ["off", "on", "shadow"]
    for trial in value["trials"]:
        # The fake drafts 10 for each of 24 chats, accepts 8, 7 and 5 of them, and says that it made 30 tokens.
        assert (trial["drafts"], trial["draft_tokens"], trial["accepted"], trial["tokens"]) == (240, 720, 480, 720)
        assert trial["acceptance_per_draft"] == 2.0
        assert trial["tokens_per_second"] == pytest.approx(720 / trial["seconds"])
    assert len({trial["output"] for trial in value["trials"]}) == 1
    lives = [json.loads(line) for line in (tmp_path / "notes/lives.jsonl").read_text().splitlines()]
    assert [life["env"]["RADIANCE_FAST_DRAFT"] for life in lives] == ["0", "1", "shadow"]
    assert all("--max-num-seqs" in life["argv"] for life in lives)


def test_own_prompts_and_modes(compared: Compare, tmp_path: Path) -> None:
    (tmp_path / "prompts.txt").write_text("one\n\ntwo\n")
    done = compared(
        "--modes", "on,off", "--prompts", str(tmp_path / "prompts.txt"), "--repeat", "12", "--max-tokens", "5"
    )
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0].split()[:3] == ["head", "tok/s", "accepted/draft"]
    assert [line.split()[0] for line in lines[1:3]] == ["on", "off"]
    assert "24 of 24" in lines[1]
    asked = [json.loads(line) for line in (tmp_path / "notes/requests.jsonl").read_text().splitlines()]
    chats = [request for request in asked if "messages" in request]
    assert {request["messages"][0]["content"] for request in chats} == {"one", "two"}
    assert len(chats) == 48
    assert all(request["max_tokens"] == 5 for request in chats)


def test_a_key_in_a_file_is_sent(compared: Compare, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "key").write_text("sk-0123456789\n")
    monkeypatch.setenv("VLLM_API_KEY_FILE", str(tmp_path / "key"))
    done = compared("--modes", "on")
    assert done.returncode == 0, done.stderr
    assert "sk-0123456789" not in done.stdout + done.stderr


def test_figures_that_may_not_be_believed_are_exit_1(compared: Compare) -> None:
    done = compared("--modes", "off,on", fake="drafts=1")
    assert done.returncode == 1
    assert "FAILED: only 24 drafts with the stock head" in done.stderr
    assert "FAILED: the 2-bit head was not active" in compared("--modes", "on", fake="head=declined").stderr


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--modes", "off,fast"], "--modes takes some of off, on, shadow"),
        (["--modes", ","], "--modes takes some of"),
        (["--set", "fast_draft=disabled"], "choose with --modes"),
        (["--set", "speculative=null", "--set", "drafter=null", "--set", "rerank=null"], "fast_draft is enabled"),
    ],
)
def test_what_cannot_be_compared_is_a_usage_error(options: list[str], said: str) -> None:
    result = CliRunner().invoke(main, ["compare", "--profile", "smollm2-cpu", *options])
    assert result.exit_code == 2
    assert said in result.stderr


def test_a_profile_without_speculation_has_nothing_to_compare() -> None:
    result = CliRunner().invoke(main, ["compare", "--profile", "gemma-4-31b"])
    assert result.exit_code == 2
    assert "does not speculate" in result.stderr


def trial(mode: Mode, **change: Any) -> Trial:
    fields: dict[str, Any] = {
        "mode": mode, "texts": ("a", "b"), "tokens": 100, "seconds": 2.0, "seconds_to_ready": 30.0, "drafts": 300,
        "draft_tokens": 900, "accepted": 600, "head_ok": True, "head": "ok", "latency": None, "stock_latency": None,
        "checked_rows": 0, "disagreed_rows": 0, "missed_rows": 0, **change,
    }  # fmt: skip
    return Trial(**fields)


def test_the_screen_shows_speed_acceptance_latency_and_other_texts() -> None:
    text = compare.to_text(
        [
            trial(Mode.OFF),
            trial(Mode.ON, seconds=1.0, latency=Latency(50, 63e-6, "device"), texts=("a", "c"), accepted=450),
            trial(Mode.SHADOW, latency=Latency(9, 60e-6, "host"), stock_latency=Latency(9, 324e-6, "host"), checked_rows=200,
                  disagreed_rows=2, missed_rows=1),
        ]
    )  # fmt: skip
    rows = {line.split()[0]: line for line in text.splitlines()[1:4]}
    assert rows["on"].split()[1:3] == ["100.0", "1.500"]
    assert "63 us (device)" in rows["on"]
    assert "1 of 2" in rows["on"]
    assert rows["shadow"].split()[4:10] == ["60", "us", "(host)", "324", "us", "(host)"]
    bars = [line for line in text.splitlines() if "#" in line]
    assert [line.count("#") for line in bars] == [20, 40, 20, 40, 30, 40]
    assert "of 200 draft rows 2 had another winner (1.00%), 1 because it was no candidate (0.50%" in text
    assert trial(Mode.ON).output == trial(Mode.OFF).output != trial(Mode.ON, texts=("a", "c")).output
