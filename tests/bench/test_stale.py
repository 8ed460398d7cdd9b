"""The warning for old figures: silent while nothing changed, and naming result, files and command when something did."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from tests.bench import stale


def git(root: Path, *args: str) -> str:
    who = ["-c", "user.name=t", "-c", "user.email=t@example.invalid"]
    return subprocess.run(
        ["git", "-C", str(root), *who, *args], capture_output=True, text=True, check=True
    ).stdout.strip()


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    for name in ("radiance/kernels/select.cu", "radiance/head.py", "radiance/hook/load.py", "radiance/settings.py"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("1\n")
    git(tmp_path, "init", "-q")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-qm", "one")
    return tmp_path


def record(root: Path, name: str, commit: str) -> None:
    folder = root / "tests/bench/results"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text(json.dumps({"commit": commit, "command": "bench it"}))


def test_silent_while_nothing_it_depends_on_has_changed(checkout: Path) -> None:
    record(checkout, "h200.json", git(checkout, "rev-parse", "HEAD"))
    (checkout / "radiance/settings.py").write_text("2\n")
    (checkout / "radiance/hook/load.py").write_text("2\n")  # times of the head alone do not depend on the hook
    assert list(stale.warnings(checkout)) == []


@pytest.mark.parametrize("committed", [True, False])
def test_names_result_files_and_command(checkout: Path, committed: bool) -> None:
    record(checkout, "h200-serve.json", git(checkout, "rev-parse", "HEAD"))
    (checkout / "radiance/hook/load.py").write_text("2\n")
    (checkout / "radiance/kernels/select.cu").unlink()
    if committed:
        git(checkout, "commit", "-qam", "two")
    ((file, text),) = stale.warnings(checkout)
    assert file == "tests/bench/results/h200-serve.json"
    assert "changed since: radiance/hook/load.py, radiance/kernels/select.cu" in text
    assert text.endswith("measure again: bench it")


@pytest.mark.parametrize("commit", ["none: before the first commit", "0" * 40, "{head}-dirty"])
def test_a_result_of_no_commit_is_named_too(checkout: Path, commit: str) -> None:
    record(checkout, "h200.json", commit.format(head=git(checkout, "rev-parse", "HEAD")))
    ((file, text),) = stale.warnings(checkout)
    assert file == "tests/bench/results/h200.json"
    assert "names no commit" in text or "uncommitted" in text


def test_what_is_watched_exists() -> None:
    for paths in stale.DEPENDS.values():
        for spec in paths:
            assert list(stale.ROOT.glob(spec)), f"{spec} matches nothing: rename it in {stale.__file__}"
