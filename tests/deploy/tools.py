"""Prometheus' own programs, found on PATH. Tests install nothing: `make test-tools` does."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest


def require(program: str) -> str:
    """Its path. Absent: a failure in CI, where nobody reads the list of skipped tests; elsewhere a skip that says why."""
    found = shutil.which(program)
    if found is None:
        text = f"{program} is not on PATH: run `make test-tools` (Debian packages prometheus, prometheus-alertmanager)"
        if os.environ.get("CI", "").lower() == "true":
            pytest.fail(text)
        pytest.skip(text)
    return found


def promtool(*arguments: str | Path, given: bytes | None = None) -> subprocess.CompletedProcess[bytes]:
    command = [require("promtool"), *map(str, arguments)]
    return subprocess.run(command, input=given, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
