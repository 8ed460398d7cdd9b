"""compose.yaml carried out: docker-compose makes the server's container with every option, on podman's Docker API.

No vLLM is started; a shell in its place looks around. What is left out is what this machine may not grant: `memlock: -1`
raises a limit.
"""

from __future__ import annotations

import os
import subprocess
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import container
import pytest
import yaml
from container import podman
from stages import ROOT
from tools import require

from tests.processes import running, until

pytestmark = pytest.mark.image
LOOK = """
id
touch /home/radiance/.cache/x && echo cache written
touch /tmp/x && echo tmp written
touch /models/x || echo models refused
touch /home/radiance/x || echo root refused
grep -E 'CapBnd|NoNewPrivs' /proc/self/status
df -m /dev/shm | tail -1
radiance plan --profile smollm2-cpu > /dev/null && echo planned
"""


@pytest.fixture
def compose(tmp_path: Path) -> Iterator[Callable[..., str]]:
    """docker-compose with the CPU files and a project of its own, everything of which is removed afterwards."""
    container.inspect_image()
    server = {
        "entrypoint": ["sh", "-c", LOOK],
        "user": "12345:0",
        "restart": "no",
        "network_mode": "none",
        "ulimits": {"memlock": 1 << 22, "nofile": 16384, "nproc": 16384},
    }
    (tmp_path / "here.yaml").write_text(yaml.safe_dump({"services": {"server": server}}))
    address = f"unix://{tmp_path}/podman.sock"
    settings = {"CONTAINERS_CONF": str(ROOT / "deploy/image/containers.conf")}
    files = ["-f", "compose.yaml", "-f", "compose.cpu.yaml", "-f", str(tmp_path / "here.yaml")]
    project = f"radiance-test-{uuid.uuid4().hex[:8]}"

    def run(*command: str) -> str:
        done = subprocess.run(
            [require("docker-compose"), "--project-name", project, *files, *command],
            cwd=ROOT / "deploy", env=dict(os.environ) | {"DOCKER_HOST": address}, capture_output=True, text=True,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    service = [require("podman"), "system", "service", "--time=0", address]
    with running(service, tmp_path / "podman.log", env=settings | dict(os.environ)):
        until((tmp_path / "podman.sock").exists, "podman's API is there")
        try:
            yield run
        finally:
            run("down", "--volumes", "--timeout", "0")


def test_the_server_can_work_in_what_compose_makes(compose: Callable[..., str]) -> None:
    compose("up", "--detach", "--no-deps", "server")
    (made,) = compose("ps", "--quiet", "server").split()
    code = podman("wait", made).stdout.strip()
    said = podman("logs", made)
    assert code == "0", said.stdout + said.stderr
    lines = said.stdout.splitlines()
    assert lines[0].startswith("uid=12345(12345) gid=0(root)")
    for line in ("cache written", "tmp written", "models refused", "root refused", "planned"):
        assert line in lines, lines
    assert "CapBnd:\t0000000000000000" in lines
    assert "NoNewPrivs:\t1" in lines
    (shm,) = [line.split()[1] for line in lines if line.endswith("/dev/shm")]
    assert int(shm) == 256
