from __future__ import annotations

import subprocess
from pathlib import Path

from radiance import provenance


def git(folder: Path, *args: str) -> None:
    who = ["-c", "user.name=t", "-c", "user.email=t@t.invalid"]
    subprocess.run(["git", "-C", str(folder), *who, *args], check=True, capture_output=True)


def test_commit_of_a_checkout(tmp_path: Path) -> None:
    git(tmp_path, "init", "-q")
    assert provenance.commit(tmp_path) == ""
    git(tmp_path, "commit", "-q", "--allow-empty", "-m", "first")
    clean = provenance.commit(tmp_path)
    assert len(clean) == 40
    (tmp_path / "new").write_text("")
    assert provenance.commit(tmp_path) == clean + "-dirty"


def test_outside_a_checkout_there_is_none(tmp_path: Path) -> None:
    assert provenance.commit(tmp_path / "nowhere") == ""
