"""Tests of helm/. They need Helm and some schemas, which `make chart` brings; so `make test` leaves them out (marker chart)."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
for folder in (ROOT / "deploy" / "chart", ROOT / "tests" / "deploy"):
    sys.path.insert(0, str(folder))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.chart)
