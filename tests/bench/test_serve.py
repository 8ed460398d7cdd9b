"""What tests/bench/serve.py makes of its rounds. The engines themselves need a GPU."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

from tests.bench import serve


def test_the_ratio_is_the_median_of_the_rounds_not_of_the_speeds() -> None:
    """A host that halves everything in every other round changes no ratio."""
    stock = {"rounds": [100.0, 50.0, 100.0, 50.0, 100.0]}
    assert serve.ratios({"rounds": [150.0, 75.0, 150.0, 75.0, 150.0]}, stock) == (1.5, 1.5, 1.5)
    low, middle, high = serve.ratios({"rounds": [110.0, 60.0, 130.0, 70.0, 150.0]}, stock)
    assert (low, middle, high) == (1.2, 1.3, 1.4)


def test_an_engine_that_says_nothing_is_killed_and_named(monkeypatch: pytest.MonkeyPatch) -> None:
    script = "import time; print('Radiance: still loading', flush=True); time.sleep(60)"
    popen, started = subprocess.Popen, []

    def silent(_: list[str], **more: Any) -> Any:
        started.append(popen([sys.executable, "-c", script], **more))
        return started[0]

    monkeypatch.setattr(subprocess, "Popen", silent)
    engine = serve.Engine("fast", [], limit=0.5)
    with pytest.raises(SystemExit, match=r"(?s)fast: no answer within .*still loading"):
        engine.answer()
    assert started[0].wait(10) < 0


def test_a_head_that_there_is_not_is_named(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "argv", ["serve.py", "FOLDER", "--heads", "stock,fast:48,stock:48"])
    with pytest.raises(SystemExit, match="2"):
        serve.main()
    assert "there is no head stock:48" in capsys.readouterr().err
