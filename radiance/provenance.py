"""Which commit a measurement was made on. A leaf: standard library only."""

from __future__ import annotations

import subprocess
from pathlib import Path


def commit(folder: Path = Path(__file__).parent) -> str:
    """HEAD, with -dirty if anything differs from it or is untracked; "" outside a checkout or before its first commit."""

    def git(*args: str) -> str:
        done = subprocess.run(["git", "-C", str(folder), *args], capture_output=True, text=True, check=False)
        return done.stdout.strip() if done.returncode == 0 else ""

    head = git("rev-parse", "--verify", "HEAD")  # without --verify, git prints "HEAD" where there is no commit yet
    return head + ("-dirty" if head and git("status", "--porcelain") else "")
