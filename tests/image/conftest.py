"""Tests of the image and of compose: Prometheus and the finding of programs are those of tests/deploy."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "deploy"))
