from __future__ import annotations

import gc
import logging
import time
from pathlib import Path

import pytest

from radiance import status, telemetry
from radiance.status import HeadState, HeadStatus
from radiance.telemetry import Telemetry


class Counting:
    """Stands for a DraftHead: something that owns a status and brings counters into it."""

    def __init__(self, name: str, state: HeadState) -> None:
        self.status = HeadStatus(name, state)

    def refresh(self) -> None:
        self.status.calls += 1


def written(folder: Path) -> status.Snapshot:
    (found,), errors = status.read_all(folder)
    assert not errors
    return found


def test_counters_come_in_before_each_write(tmp_path: Path) -> None:
    teller = Telemetry(tmp_path, 3, "0.33.0", "cpu")
    head = Counting("lm_head", HeadState.ACTIVE)
    teller.add(head.status)
    teller.follow(head.status, head.refresh)
    teller.flush()
    before = written(tmp_path)
    teller.flush()
    after = written(tmp_path)
    assert (after.rank, after.vllm, after.device) == (3, "0.33.0", "cpu")
    assert after.heads[0].calls > before.heads[0].calls >= 1
    assert after.heartbeat >= before.heartbeat


def test_an_engine_that_is_gone_takes_its_heads_along(tmp_path: Path) -> None:
    teller = Telemetry(tmp_path, 0, "", "cpu")
    for name, state in (("first", HeadState.ACTIVE), ("declined", HeadState.DECLINED)):
        head = Counting(name, state)
        teller.add(head.status)
        teller.follow(head.status, head.refresh)
    kept = Counting("second", HeadState.ACTIVE)
    teller.add(kept.status)
    teller.follow(kept.status, kept.refresh)
    del head
    gc.collect()
    teller.flush()
    assert [h.name for h in written(tmp_path).heads] == ["declined", "second"]


def test_a_problem_is_written_at_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    teller = Telemetry(tmp_path, 0, "", "cpu")
    with caplog.at_level(logging.WARNING, "vllm.radiance"):
        teller.problem("no LM head found")
    assert written(tmp_path).problem == "no LM head found"
    assert "Radiance declined: no LM head found" in caplog.text


def test_a_folder_that_cannot_be_written_is_said_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "vllm.radiance"):
        teller = Telemetry(tmp_path / "missing", 0, "", "cpu")
        teller.flush()
        teller.flush()
    assert caplog.text.count("cannot write") == 1


def test_without_a_folder_nothing_is_written(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "vllm.radiance"):
        teller = Telemetry(None, 0, "", "cpu")
        teller.flush()
    assert teller.path is None
    assert "RADIANCE_STATE_DIR is not set" in caplog.text


def test_the_writer_writes_by_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(telemetry, "PERIOD_SECONDS", 0.01)
    teller = Telemetry(tmp_path, 0, "", "cpu")
    assert teller.path is not None
    first = written(tmp_path).heartbeat
    for _ in range(1000):
        if written(tmp_path).heartbeat > first:
            return
        time.sleep(0.01)
    pytest.fail("the writer thread wrote nothing")
