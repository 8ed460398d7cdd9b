from __future__ import annotations

import json
import threading
from pathlib import Path

import pytest

from radiance import status
from radiance.errors import StatusError
from radiance.status import HeadState, HeadStatus, Phase, Snapshot, Transition


def snapshot(rank: int = 0, started: float = 1.0) -> Snapshot:
    head = HeadStatus(
        "lm_head", HeadState.ACTIVE, history=[Transition(HeadState.ACTIVE, 2.0, phase=Phase.LOAD)], n=8, k=64
    )
    head.stock_calls["capture"] = 3
    head.latency.counts[2] = 5
    return Snapshot(pid=1, rank=rank, started=started, heartbeat=3.0, radiance="0", heads=[head])


def test_round_trip(tmp_path: Path) -> None:
    path = status.path_for(tmp_path, 0, 1)
    status.write(path, snapshot())
    again = status.read(path)
    assert again == snapshot()
    assert again.heads[0].state is HeadState.ACTIVE
    assert again.heads[0].history[0].phase is Phase.LOAD


def test_all_ranks_in_order_and_bad_files_reported(tmp_path: Path) -> None:
    status.write(status.path_for(tmp_path, 1, 10), snapshot(1))
    status.write(status.path_for(tmp_path, 0, 12), snapshot(0, started=9.0))
    status.write(status.path_for(tmp_path, 0, 11), snapshot(0, started=5.0))
    (tmp_path / f"torn{status.SUFFIX}").write_text('{"schema": 1, "pid"')
    (tmp_path / f"other{status.SUFFIX}").write_text(json.dumps({"schema": 99}))
    (tmp_path / f"damaged{status.SUFFIX}").write_text(json.dumps({"schema": status.SCHEMA, "heads": [{}]}))
    (tmp_path / "unrelated.json").write_text("{}")
    found, errors = status.read_all(tmp_path)
    assert [(s.rank, s.started) for s in found] == [(0, 5.0), (0, 9.0), (1, 1.0)]
    assert sorted(str(e).split("/")[-1].split(":")[0].split(".")[0] for e in errors) == ["damaged", "other", "torn"]
    assert any("expected 1" in str(e) for e in errors)


def test_missing_folder_is_empty(tmp_path: Path) -> None:
    assert status.read_all(tmp_path / "no") == ([], [])


def test_missing_file_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(StatusError, match="not a readable"):
        status.read(tmp_path / "no")


def test_a_reader_never_sees_half_a_file(tmp_path: Path) -> None:
    path = status.path_for(tmp_path, 0, 1)
    status.write(path, snapshot())
    stop = threading.Event()

    def writer() -> None:
        while not stop.is_set():
            status.write(path, snapshot())

    thread = threading.Thread(target=writer)
    thread.start()
    try:
        for _ in range(300):
            status.read(path)
    finally:
        stop.set()
        thread.join()
    assert [p.name for p in tmp_path.iterdir()] == [path.name]


def test_failed_write_leaves_no_temporary(tmp_path: Path) -> None:
    broken = snapshot()
    broken.device = object()  # type: ignore[assignment]
    with pytest.raises(TypeError):
        status.write(status.path_for(tmp_path, 0, 1), broken)
    assert list(tmp_path.iterdir()) == []
