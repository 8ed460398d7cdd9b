"""Launch tables: what is written is read, and whatever is not a table of this device and version changes nothing."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from radiance import launches, tables, tuning
from radiance.pack import Format

H200 = tuning.Device("NVIDIA H200", (9, 0), 132, 232448)
FORMAT = Format("fragment", 124160, 5120, 128)
#: serves 8 rows with the kernel for 16, which no built-in table would
CHOICE = next(c for c in tuning.CANDIDATES if c.rows == 16)


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv("HOME", str(tmp_path))
    forget()
    yield tmp_path
    forget()


def forget() -> None:
    tuning.measured.cache_clear()
    tuning.segments.cache_clear()


def table(**changes: Any) -> tables.Table:
    shape = tables.Shape(FORMAT.n, FORMAT.k, (asdict(CHOICE),), (asdict(tuning.TRITON_CANDIDATES[0]),), 40)
    return tables.Table(**{"device": H200.name, "capability": (9, 0), "processors": 132, "shapes": (shape,)} | changes)


def choice() -> tuple[tuning.Coarse, int]:
    forget()
    return tuning.coarse(1, FORMAT, H200), tuning.crossover_rows(FORMAT.n, FORMAT.k, H200)


def test_what_was_measured_for_a_head_is_used_for_that_head_only() -> None:
    before, crossover = choice()
    assert (before.rows, crossover) == (8, 128)
    tables.write(table())
    assert choice() == (CHOICE, 40)
    assert tuning.coarse(1, Format("fragment", 1000, 5120, 128), H200) == before
    assert tuning.crossover_rows(248320, 5120, H200) == 128


def test_reading_gives_what_was_written() -> None:
    path = tables.write(table())
    assert tables.read(H200.name, H200.capability, H200.processors) == table()
    assert path.name == "nvidia-h200.json"
    assert path.parent.stat().st_mode & 0o777 == 0o700


def damage(path: Path, **changes: Any) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


WRONG = {
    "torn": (lambda p: p.write_text(p.read_text()[:200]), "Unterminated|Expecting"),
    "another schema": (lambda p: damage(p, schema=99), "schema"),
    "a list": (lambda p: p.write_text("[]"), "schema"),
    "another device": (lambda p: damage(p, device="NVIDIA H20"), "made on"),
    "other processors": (lambda p: damage(p, processors=78), "made on"),
    "a field too many": (lambda p: damage(p, colour="red"), "colour"),
    "no shapes": (lambda p: damage(p, shapes=None), "NoneType"),
    "a negative n": (lambda p: damage(p, shapes=[{"n": -1, "k": 5120}]), "whole number"),
    "a launch we do not ship": (
        lambda p: damage(p, shapes=[{"n": 124160, "k": 5120, "coarse": [asdict(CHOICE) | {"warps": 5}]}]),
        "no launch of this version",
    ),
    "an unknown field of a launch": (
        lambda p: damage(p, shapes=[{"n": 124160, "k": 5120, "triton": [{"cores": 5}]}]), "cores"),
    "a folder others may write": (lambda p: p.parent.chmod(0o777), "0700"),
}  # fmt: skip


@pytest.mark.parametrize("wrong", WRONG)
def test_a_table_that_cannot_be_trusted_is_ignored_with_a_reason(wrong: str, caplog: pytest.LogCaptureFixture) -> None:
    usual = choice()
    path = tables.write(table())
    assert choice() != usual
    harm, reason = WRONG[wrong]
    harm(path)
    caplog.clear()
    with caplog.at_level(logging.WARNING, "vllm.radiance"):
        assert choice() == usual
    (line,) = {record.message for record in caplog.records}
    assert str(path) in line
    assert any(part in line for part in reason.split("|")), line


def test_while_tuning_what_was_found_is_in_force_and_nothing_of_it_stays() -> None:
    usual = choice()
    tables.write(table())
    mine = tables.Shape(FORMAT.n, FORMAT.k, (asdict(usual[0]),), crossover=7)
    assert choice() == (CHOICE, 40)
    with tuning.using(mine, H200):
        assert tuning.coarse(1, FORMAT, H200) == usual[0]
        assert tuning.segments(1, FORMAT, H200)[0].kernel == usual[0]
        assert tuning.crossover_rows(FORMAT.n, FORMAT.k, H200) == 7
    assert tuning.segments(1, FORMAT, H200)[0].kernel == CHOICE
    assert choice() == (CHOICE, 40)


def test_of_each_width_the_fastest_unless_a_wider_one_beats_it() -> None:
    one, other = [c for c in tuning.CANDIDATES if c.rows == 8][:2]
    sixteen, wide = CHOICE, next(c for c in tuning.CANDIDATES if c.rows == 64)
    assert launches.best({one: 50.0, other: 43.0, sixteen: 47.0, wide: 75.0}) == [other, sixteen, wide]
    assert launches.best({one: 50.0, other: 49.0, sixteen: 47.0, wide: 75.0}) == [sixteen, wide]
    assert launches.best({one: 47.5, sixteen: 47.0}) == [one, sixteen], "within noise the narrower one stays"


def test_a_table_says_its_launches_in_any_order() -> None:
    rows = sorted((c for c in tuning.CANDIDATES if c.stem == "coarse"), key=lambda c: c.rows)
    for order in (rows, rows[::-1]):
        tables.write(table(shapes=(tables.Shape(FORMAT.n, FORMAT.k, tuple(map(asdict, order))),)))
        forget()
        assert [tuning.coarse(m, FORMAT, H200).rows for m in (1, 9, 17, 100)] == [8, 16, 32, 32]


def test_no_table_is_no_news(caplog: pytest.LogCaptureFixture) -> None:
    assert choice()[1] == 128
    assert not caplog.records
