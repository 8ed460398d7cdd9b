"""The search for dead code finds it, and is silent on what frameworks call."""

from __future__ import annotations

from pathlib import Path

from tests import dead_code

MODULE = """
import os
from dataclasses import dataclass


@dataclass
class Row:
    written_only: int = 0


def used() -> Row:
    return Row()


def dead() -> None:
    return None


@main.command()
def called_by_click() -> None:
    used()
"""


def test_finds_what_nobody_reads(tmp_path: Path) -> None:
    (tmp_path / "radiance").mkdir()
    (tmp_path / "radiance/module.py").write_text(MODULE)
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests/test_module.py").write_text("def test_it() -> None: ...\n")
    assert dead_code.found(tmp_path) == [
        "radiance/module.py:2: unused import 'os'",
        "radiance/module.py:15: unused function 'dead'",
    ]
    (tmp_path / "tests/test_module.py").write_text(
        "from radiance.module import dead, os\n\n\ndef test_it() -> None:\n    dead(os)\n"
    )
    assert dead_code.found(tmp_path) == []
