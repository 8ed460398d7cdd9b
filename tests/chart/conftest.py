"""Tests of helm/. They need Helm and some schemas, which `make chart` brings; so `make test` leaves them out (marker chart)."""

from __future__ import annotations

import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
for folder in (ROOT / "deploy" / "chart", ROOT / "tests" / "deploy"):
    sys.path.insert(0, str(folder))
# An environment without the schemas cannot even import the tests; where `make chart` lacks them, pytest finds no test and fails.
collect_ignore_glob = [] if find_spec("kubernetes_validate") else ["test_*.py"]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.chart)
