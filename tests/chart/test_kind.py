"""deploy/chart/kind.sh, which needs a container engine with kind: its order, and that no cluster is left, with stand-ins.

What it gives to `helm install` is rendered by the real Helm.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.chart import helm

STAND_IN = f"""#!{sys.executable}
import json, os, sys
call = [os.path.basename(sys.argv[0]), *sys.argv[1:]]
with open(os.environ["CALLS"], "a") as calls:
    calls.write(json.dumps(call) + "\\n")
sys.exit(23 if " ".join(call[:2]) == os.environ["BROKEN"] else 0)
"""


def run(folder: Path, broken: str = "") -> tuple[int, list[list[str]]]:
    """Exit status and what was called."""
    for name in ("kind", "docker", "kubectl", "helm4"):
        (folder / name).write_text(STAND_IN)
        (folder / name).chmod(0o755)
    calls = folder / "calls"
    done = subprocess.run(
        [helm.ROOT / "deploy/chart/kind.sh"],
        env={
            "PATH": f"{folder}:{os.environ['PATH']}",
            "CHART_TOOLS": str(folder),
            "CALLS": str(calls),
            "BROKEN": broken,
        },
    )
    return done.returncode, [json.loads(line) for line in calls.read_text().splitlines()]


def test_installs_tests_and_takes_the_cluster_away(tmp_path: Path) -> None:
    status, calls = run(tmp_path)
    assert status == 0
    assert [call[:2] for call in calls] == [
        ["kind", "create"],
        ["kind", "load"],
        ["helm4", "install"],
        ["helm4", "test"],
        ["helm4", "uninstall"],
        ["kind", "delete"],
    ]
    assert len({call[call.index("--name") + 1] for call in calls if call[0] == "kind"}) == 1
    wanted = [word for word in calls[2][2:] if word not in ("--wait", "--timeout", "15m")]
    rendered = helm.helm("template", *wanted)
    assert "image: radiance:cpu" in rendered
    assert "imagePullPolicy: Never" in rendered
    assert "IfNotPresent" not in rendered


@pytest.mark.parametrize("broken", ["kind load", "helm4 install", "helm4 test"])
def test_a_failure_is_told_and_leaves_no_cluster(tmp_path: Path, broken: str) -> None:
    status, calls = run(tmp_path, broken)
    assert status == 23
    assert [call[:2] for call in calls[-3:]] == [["kubectl", "get"], ["kubectl", "logs"], ["kind", "delete"]]
