"""`make demo`, whole: the embedded model, prepared, served with both heads, compared. What a newcomer sees first."""

from __future__ import annotations

import os
import re
import subprocess

import pytest

from tests.e2e.harness import BIN

pytestmark = pytest.mark.e2e


def test_the_demo_shows_what_the_readme_says() -> None:
    done = subprocess.run(
        [str(BIN / "radiance"), "demo", "--profile", "smollm2-cpu"],
        env={**os.environ, "PATH": f"{BIN}:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        timeout=900,
    )
    output = done.stdout + done.stderr
    assert done.returncode == 0, output[-4000:]
    line = re.search(
        r"^acceptance_per_draft fast=(\S+) stock=(\S+) drafts_fast=(\d+) drafts_stock=(\d+) ratio=(\S+)$", output, re.M
    )
    assert line, output[-4000:]
    fast, stock, drafts, _, ratio = (float(text) for text in line.groups())
    assert drafts >= 500
    assert 2.9 < stock <= 3.0  # the model drafts for itself: its own head is right but for bf16 near-ties
    assert ratio >= 0.99
    assert fast >= 0.99 * stock
    assert "Paris" in output  # readable text, and true
    assert "active" in output
    assert "/metrics" in output
