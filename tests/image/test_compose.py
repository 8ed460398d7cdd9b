"""deploy/compose*.yaml: read by a real docker-compose, and by those who will mount its files."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import stages
import yaml
from stages import ROOT
from tools import promtool, require

DEPLOY = ROOT / "deploy"
ALL = "compose.yaml"
#: what a user types -> the accelerator
WAYS = {
    "cuda": [],
    "rocm": ["-f", ALL, "-f", "compose.rocm.yaml"],
    "cpu": ["-f", ALL, "-f", "compose.cpu.yaml"],
}
each_way = pytest.mark.parametrize("way", WAYS)
EXAMPLE = (DEPLOY / ".env.example").read_text()
VARIABLES = dict(re.findall(r"^([A-Z_]+)=(.*)$", EXAMPLE, re.M))
SERVER_VARIABLES = list(yaml.safe_load((DEPLOY / ALL).read_text())["services"]["server"]["environment"])


def config(way: str, given: Mapping[str, str]) -> dict[str, Any]:
    """What docker-compose understood, with these variables and no others of ours."""
    found: dict[str, Any] = yaml.safe_load(_config(way, tuple(sorted(given.items()))))
    return found


@cache
def _config(way: str, given: tuple[tuple[str, str], ...]) -> str:
    clean = {name: value for name, value in os.environ.items() if name not in VARIABLES}
    command = [require("docker-compose"), *WAYS[way], "config"]
    done = subprocess.run(command, cwd=DEPLOY, env=clean | dict(given), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "variable is not set" not in done.stderr
    return done.stdout


@each_way
def test_it_is_valid_and_gives_the_right_device(way: str) -> None:
    server = config(way, {})["services"]["server"]
    devices = server.get("deploy", {}).get("resources", {}).get("reservations", {}).get("devices", [])
    assert [device["driver"] for device in devices] == (["nvidia"] if way == "cuda" else [])
    nodes = {str(device).partition(":")[0] for device in server.get("devices", [])}
    assert nodes == ({"/dev/kfd", "/dev/dri"} if way == "rocm" else set())
    assert server["image"].endswith(f"radiance:{way}")


@each_way
def test_empty_variables_mean_their_defaults(way: str) -> None:
    """All variables of .env.example, each empty: the same as none at all, and the same as the example's own values."""
    nothing = config(way, {})
    assert config(way, dict.fromkeys(VARIABLES, "")) == nothing
    assert config(way, VARIABLES) == nothing


def test_every_variable_is_in_the_example_and_has_a_default() -> None:
    used = set()
    for path in DEPLOY.glob("compose*.yaml"):
        text = re.sub(r"^\s*#.*$", "", path.read_text(), flags=re.M)
        for expression in re.findall(r"\$\{([^}]*)\}", text):
            assert ":-" in expression, f"{path.name}: ${{{expression}}} has no default for an empty value"
            used.add(expression.partition(":-")[0])
    assert used == set(VARIABLES)


@each_way
def test_variables_reach_the_server(way: str) -> None:
    given = {"PROFILE": "mine", "API_PORT": "18001", "SHM_SIZE": "1gb", "HF_TOKEN": "t", "MODELS": "/tmp/models"}
    server = config(way, given)["services"]["server"]
    assert server["environment"]["HF_TOKEN"] == "t"
    assert "0.0.0.0:18001:8000/tcp" in server["ports"]
    assert "/tmp/models:/models:ro" in server["volumes"]
    if way != "cpu":
        assert server["command"][:2] == ["--profile", "mine"]
        assert server["shm_size"] in ("1gb", "1073741824", 1 << 30)


@each_way
def test_the_server_is_shut_in(way: str) -> None:
    server = config(way, {})["services"]["server"]
    assert server["read_only"] is True
    assert server["cap_drop"] == ["ALL"]
    assert "no-new-privileges:true" in server["security_opt"]
    home = stages.pairs(stages.merged(way).all("ENV"))["HOME"]
    assert f"cache:{home}/.cache:rw" in server["volumes"]
    published = [port for service in config(way, {})["services"].values() for port in service.get("ports", [])]
    assert [port for port in published if not port.startswith("127.0.0.1:")] == ["0.0.0.0:8000:8000/tcp"]


def test_docker_waits_longer_than_the_launcher() -> None:
    server = config("cuda", {})["services"]["server"]
    grace = float(server["command"][server["command"].index("--grace-seconds") + 1])
    wait = re.fullmatch(r"(?:(\d+)m)?(\d+)s", server["stop_grace_period"])
    assert wait is not None
    assert int(wait[1] or 0) * 60 + int(wait[2]) >= grace + 20


@each_way
def test_every_mounted_file_is_there(way: str) -> None:
    seen = 0
    for service in config(way, {})["services"].values():
        for volume in service.get("volumes", []):
            source = volume.partition(":")[0]
            if source.startswith("/"):
                seen += 1
                assert Path(source).exists(), volume
    assert seen >= 7


def test_the_schema_of_compose_files() -> None:
    checker = Path(sys.executable).with_name("check-jsonschema")
    files = [str(path) for path in sorted(DEPLOY.glob("compose*.yaml"))]
    done = subprocess.run([checker, "--builtin-schema", "vendor.compose-spec", *files], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


def test_prometheus_is_configured_as_everywhere_else(tmp_path: Path) -> None:
    """Only the targets differ from deploy/prometheus, and they are services of compose.yaml at ports of the image."""
    ours = yaml.safe_load((DEPLOY / "compose/prometheus.yml").read_text())
    theirs = yaml.safe_load((DEPLOY / "prometheus/prometheus.yml").read_text())
    services = config("cuda", {})["services"]
    for mine, other in zip(ours["scrape_configs"], theirs["scrape_configs"], strict=True):
        (target,) = mine["static_configs"][0]["targets"]
        (local,) = other["static_configs"][0]["targets"]
        assert target.partition(":")[0] in services
        assert target.partition(":")[2] == local.partition(":")[2]
        mine["static_configs"], other["static_configs"] = [], []
    ours["alerting"], theirs["alerting"] = None, None
    assert ours == theirs
    mounts = {
        volume.split(":")[1]: Path(volume.split(":")[0])
        for volume in services["prometheus"]["volumes"]
        if volume.startswith("/")
    }
    for inside, outside in mounts.items():
        (tmp_path / Path(inside).name).write_text(outside.read_text())
    checked = promtool("check", "config", tmp_path / "prometheus.yml")
    assert checked.returncode == 0, checked.stdout.decode()
    assert b"2 rule files found" in checked.stdout


def test_alertmanager_accepts_its_file() -> None:
    done = subprocess.run(
        [require("amtool"), "check-config", DEPLOY / "compose/alertmanager.yml"], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    ours = yaml.safe_load((DEPLOY / "compose/prometheus.yml").read_text())
    (target,) = ours["alerting"]["alertmanagers"][0]["static_configs"][0]["targets"]
    assert target == "alertmanager:9093"


def test_grafana_finds_prometheus_and_the_dashboard() -> None:
    services = config("cuda", {})["services"]
    (source,) = yaml.safe_load((DEPLOY / "compose/datasource.yml").read_text())["datasources"]
    assert source["url"] == "http://prometheus:9090"
    assert source["isDefault"] is True
    mounts = dict(reversed(v.split(":")[:2]) for v in services["grafana"]["volumes"])
    assert "/etc/grafana/provisioning/datasources/prometheus.yml" in mounts
    provider = Path(mounts["/etc/grafana/provisioning/dashboards"]) / "radiance.yml"
    (found,) = yaml.safe_load(provider.read_text())["providers"]
    assert f"{found['options']['path']}/radiance.json" in mounts
    home = services["grafana"]["environment"]["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"]
    assert home in mounts
