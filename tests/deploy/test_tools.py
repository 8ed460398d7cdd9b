"""A test that needs a program: never silently green in CI."""

from __future__ import annotations

import pytest
from tools import require


@pytest.mark.parametrize(("ci", "outcome"), [("true", pytest.fail.Exception), ("", pytest.skip.Exception)])
def test_a_program_that_is_missing(monkeypatch: pytest.MonkeyPatch, ci: str, outcome: type[BaseException]) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")
    monkeypatch.setenv("CI", ci)
    with pytest.raises(outcome, match="make test-tools"):
        require("promtool")
