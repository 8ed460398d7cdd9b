"""What the chart renders is what launcher and vLLM take. Over the recorded renders (tests/chart/golden): no Helm is needed.

Arguments of every container go through the real command line; metrics that autoscaling asks for are in the vLLM that is
installed.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner
from promql import ROOT, names, ours, vllms

from launcher.cli import main

RENDERS = sorted((ROOT / "tests" / "chart" / "golden").glob("*.yaml"))
each_render = pytest.mark.parametrize("path", RENDERS, ids=lambda path: path.stem)
INJECTED = {"LWS_LEADER_ADDRESS": "demo-radiance-group-0.demo-radiance-group.llm", "LWS_WORKER_INDEX": "1"}


def objects(path: Path) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all(path.read_text()))


def containers(path: Path) -> list[dict[str, Any]]:
    found = []
    for item in objects(path):
        group = item.get("spec", {}).get("leaderWorkerTemplate", {})
        for template in (
            item.get("spec", {}).get("template"),
            group.get("leaderTemplate"),
            group.get("workerTemplate"),
        ):
            if template:
                found += [*template["spec"].get("initContainers", []), *template["spec"]["containers"]]
    return found


def arguments(container: dict[str, Any], profiles: Path) -> list[str]:
    """As the kubelet would give them, with the profiles where the test has put them."""
    given = [part.replace("/etc/radiance/profiles", str(profiles)) for part in container["args"]]
    for name, value in INJECTED.items():
        given = [part.replace(f"$({name})", value) for part in given]
    return given


def write_profiles(path: Path, folder: Path) -> None:
    for item in objects(path):
        if item["kind"] == "ConfigMap" and item["metadata"]["name"].endswith("-profiles"):
            for name, text in item["data"].items():
                (folder / name).write_text(text)


def test_every_name_in_a_query_of_the_chart_exists() -> None:
    asked = set()
    for path in RENDERS:
        for item in objects(path):
            if item["kind"] == "ScaledObject":
                asked |= set().union(*(names(trigger["metadata"]["query"]) for trigger in item["spec"]["triggers"]))
    assert asked
    assert asked <= ours() | vllms()


@each_render
def test_the_launcher_takes_the_arguments_of_every_container(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_profiles(path, tmp_path)
    seen = set()
    for container in containers(path):
        if "args" not in container or container["name"] == "wait-for-leader":
            continue
        given = arguments(container, tmp_path)
        seen.add(given[0])
        for entry in container["env"]:
            monkeypatch.setenv(entry["name"], entry.get("value", "a-secret-of-the-cluster"))
        if given[0] == "serve":
            done = CliRunner().invoke(main, ["plan", *given[1:]])
            assert done.exit_code == 0, f"{given}: {done.output}"
            assert "a-secret-of-the-cluster" not in done.output
        elif given[0] == "fetch":
            main.commands["fetch"].make_context("fetch", given[1:])  # parses; raises on what it does not know
    assert seen >= {"serve", "fetch"}


def test_a_worker_runs_what_the_launcher_plans(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Headless, as the rank that its pod is told, with the head that the leader has too."""
    [path] = [p for p in RENDERS if p.stem == "lws"]
    write_profiles(path, tmp_path)
    leader, worker = (c for c in containers(path) if c["name"] == "radiance")
    assert "command" not in worker, "the image's entry"
    for entry in worker["env"]:
        monkeypatch.setenv(entry["name"], entry["value"])
    plans = []
    for container in (leader, worker):
        verb, *given = arguments(container, tmp_path)
        assert verb == "serve"
        done = CliRunner().invoke(main, ["plan", "--format", "json", *given])
        assert done.exit_code == 0, done.output
        plans.append(json.loads(done.stdout))
    argv, words = (plan["argv"] for plan in plans)
    assert words[1:3] == ["serve", "Qwen/Qwen3.8-27B"]
    assert words[words.index("--master-addr") + 1] == INJECTED["LWS_LEADER_ADDRESS"]
    assert words[words.index("--node-rank") + 1] == "1"
    assert words[words.index("--tensor-parallel-size") + 1] == "8"
    assert "--headless" in words
    assert "--headless" not in argv
    assert plans[1]["env"]["RADIANCE_FAST_DRAFT"] == "1"
    assert plans[1]["env"] == plans[0]["env"]
