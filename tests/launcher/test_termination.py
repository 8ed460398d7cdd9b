"""The termination message: written on a failure, nowhere without a place, never the reason of another failure."""

from __future__ import annotations

from pathlib import Path

import pytest

from launcher import termination
from launcher.errors import StartupSpent
from launcher.secrets import Redactor


def fail(path: Path | None, error: Exception, redact: Redactor | None = None) -> None:
    with pytest.raises(type(error)), termination.message(path, redact or Redactor({})):
        raise error


def test_the_reason_replaces_what_was_there_and_hides_secrets(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_text("old and longer than what comes now" * 9)
    fail(
        path, StartupSpent("not ready; it reached phase loading; token hf_secret"), Redactor({"HF_TOKEN": "hf_secret"})
    )
    assert path.read_text() == "exit 124, StartupSpent: not ready; it reached phase loading; token ***"


def test_a_fault_of_the_launcher_is_said_too(tmp_path: Path) -> None:
    fail(tmp_path / "log", ZeroDivisionError("oh"))
    assert (tmp_path / "log").read_text() == "exit 1, internal error: ZeroDivisionError('oh')"


def test_kubernetes_takes_4096_bytes(tmp_path: Path) -> None:
    fail(tmp_path / "log", StartupSpent("ä" * 9000))
    assert len((tmp_path / "log").read_bytes()) == 4096


def test_no_message_after_a_clean_end(tmp_path: Path) -> None:
    with termination.message(tmp_path / "log"):
        pass
    assert not (tmp_path / "log").exists()


def test_the_default_is_used_only_where_it_exists(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(termination, "DEFAULT", tmp_path / "default")
    fail(None, StartupSpent("one"))
    assert not (tmp_path / "default").exists()
    (tmp_path / "default").touch()
    fail(None, StartupSpent("two"))
    assert (tmp_path / "default").read_text() == "exit 124, StartupSpent: two"


def test_a_place_that_cannot_be_written_does_not_hide_the_reason(tmp_path: Path) -> None:
    fail(tmp_path / "no" / "folder", StartupSpent("x"))
