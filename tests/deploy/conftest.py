"""Tests of deploy/: the helpers of the launcher tests and the dashboard's builder are used from where they are."""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
for folder in (ROOT / "tests" / "launcher", ROOT / "deploy" / "grafana"):
    sys.path.insert(0, str(folder))
