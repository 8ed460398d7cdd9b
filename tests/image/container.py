"""One container of the CPU image, as strict as a cluster makes it, driven through podman."""

from __future__ import annotations

import json
import os
import subprocess
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
from stages import ROOT
from tools import require

from tests.processes import free_port, until

IMAGE = os.environ.get("IMAGE", "localhost/radiance:cpu")
CACHE = "/home/radiance/.cache"
#: nobody's uid, group 0: what OpenShift does. One writable folder and /tmp, nothing else, and no rights at all.
STRICT = (
    *("--user", "12345:0", "--read-only", "--read-only-tmpfs=false", "--cap-drop", "all"),
    *("--security-opt", "no-new-privileges", "--shm-size", "256m"),
    *("--tmpfs", f"{CACHE}:rw,exec,mode=0770", "--tmpfs", "/tmp:rw,exec,mode=1777"),
)
#: two busy cores start a vLLM in two minutes; a wait that ends here is a failure, not a slow machine
PATIENCE = 600.0


def podman(*command: str, given: str | None = None, check: bool = True) -> subprocess.CompletedProcess[str]:
    """`podman COMMAND`; `given` becomes its input. Raises AssertionError with what it said if it fails and must not."""
    settings = {"CONTAINERS_CONF": str(ROOT / "deploy/image/containers.conf")}
    done = subprocess.run(
        [require("podman"), *command],
        env=settings | dict(os.environ),
        input=given or "",
        capture_output=True,
        text=True,
    )
    if check and done.returncode:
        pytest.fail(f"podman {' '.join(command[:4])} ... ended with {done.returncode}:\n{done.stdout}{done.stderr}")
    return done


def inspect_image() -> dict[str, Any]:
    if podman("image", "exists", IMAGE, check=False).returncode:
        pytest.fail(f"{IMAGE} is not in podman's storage: run `make image`")
    found: dict[str, Any] = json.loads(podman("image", "inspect", IMAGE).stdout)[0]
    return found


def once(*arguments: str, check: bool = True) -> subprocess.CompletedProcess[str]:
    """`radiance ARGUMENTS` in a strict container of its own that has no network."""
    return podman("run", "--rm", "--network", "none", *STRICT, IMAGE, *arguments, check=check)


@dataclass
class Server:
    name: str
    api: httpx.Client
    metrics: httpx.Client
    metrics_port: int

    def status(self) -> dict[str, Any]:
        found: dict[str, Any] = self.metrics.get("/status").json()
        return found

    def execute(self, *command: str, given: str | None = None, check: bool = True) -> subprocess.CompletedProcess[str]:
        return podman("exec", "--interactive", self.name, *command, given=given, check=check)

    def logs(self) -> str:
        done = podman("logs", self.name)
        return done.stdout + done.stderr

    def running(self) -> bool:
        return podman("container", "inspect", "--format", "{{.State.Running}}", self.name).stdout.strip() == "true"

    def wait_ready(self) -> None:
        def ready() -> bool:
            assert self.running(), f"it ended while starting:\n{self.logs()[-4000:]}"
            try:
                return self.metrics.get("/readyz").status_code == 200
            except httpx.TransportError:
                return False

        until(ready, f"{self.name} is ready", PATIENCE)


@contextmanager
def serving(*options: str) -> Iterator[Server]:
    """`--profile smollm2-cpu` in a strict container, its ports published on loopback; removed afterwards."""
    name, api, metrics = f"radiance-test-{uuid.uuid4().hex[:8]}", free_port(), free_port()
    published = ("--publish", f"127.0.0.1:{api}:8000", "--publish", f"127.0.0.1:{metrics}:9410")
    podman("run", "--detach", "--name", name, *STRICT, *published, *options, IMAGE,
           "--profile", "smollm2-cpu", "--grace-seconds", "300")  # fmt: skip
    try:
        with (
            httpx.Client(base_url=f"http://127.0.0.1:{api}", trust_env=False, timeout=PATIENCE) as to_api,
            httpx.Client(base_url=f"http://127.0.0.1:{metrics}", trust_env=False, timeout=30) as to_metrics,
        ):
            yield Server(name, to_api, to_metrics, metrics)
    finally:
        podman("rm", "--force", "--time", "0", "--volumes", name, check=False)


def layers(image: dict[str, Any]) -> list[tuple[Path, int]]:
    """The folders that hold the image's layers on this machine, the top one first, with their bytes."""
    data = image["GraphDriver"]["Data"]
    folders = [Path(data["UpperDir"]), *(Path(part) for part in data.get("LowerDir", "").split(":") if part)]
    found = []
    for folder in folders:
        names = [os.path.join(where, name) for where, _, files in os.walk(folder) for name in files]
        found.append((folder, sum(os.lstat(name).st_size for name in names)))
    return found
