"""Every test starts without RADIANCE_* variables and with fixed seeds: a failure in CI fails here too."""

from __future__ import annotations

import os
import sys

import hypothesis
import pytest

hypothesis.settings.register_profile("ci", derandomize=True, deadline=None)
hypothesis.settings.register_profile("laptop", deadline=None)
hypothesis.settings.load_profile("ci" if os.environ.get("CI") else "laptop")


@pytest.fixture(autouse=True)
def clean_start(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith("RADIANCE_"):
            monkeypatch.delenv(name)
    if "torch" in sys.modules:  # the launcher's tests run without it
        sys.modules["torch"].manual_seed(0)
