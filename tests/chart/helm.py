"""The real Helm, 3 and 4, over the chart: objects out, or the error a user would read."""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[2]
CHART = ROOT / "helm"
SCENARIOS = sorted(path.name.removesuffix("-values.yaml") for path in CHART.glob("ci/*-values.yaml"))
VERSIONS = (3, 4)
#: what most tests render: a GPU model by its name alone
GPU = {"profile": "qwen3.8-27b-mtp"}
CPU = {"profile": "smollm2-cpu"}
Object = dict[str, Any]


class Refused(Exception):
    """`helm` ended with an error; the text is what it said."""


@cache
def tools() -> Path:
    """The folder with helm3, helm4 and kubectl."""
    done = subprocess.run([ROOT / "deploy" / "chart" / "tools.sh"], stdout=subprocess.PIPE, text=True, check=True)
    return Path(done.stdout.strip())


@cache
def home() -> dict[str, str]:
    """An environment in which Helm finds no cluster, no plugin and no cache of the user's."""
    folder = tempfile.mkdtemp(prefix="chart-test-")
    names = ("HELM_CACHE_HOME", "HELM_CONFIG_HOME", "HELM_DATA_HOME", "HOME")
    return {"PATH": os.environ["PATH"], "KUBECONFIG": f"{folder}/none", **dict.fromkeys(names, folder)}


def helm(*arguments: str | Path, version: int = 4, env: Mapping[str, str] | None = None) -> str:
    """stdout of `helm ...`. Raises Refused with all it said."""
    command = [str(tools() / f"helm{version}"), *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, env={**home(), **(env or {})})
    if done.returncode:
        raise Refused(done.stdout + done.stderr)
    return done.stdout


def template(
    values: Mapping[str, Any] | None = None,
    *,
    scenario: str | None = None,
    name: str = "demo",
    version: int = 4,
    kube: str = "1.37",
    options: Sequence[str] = (),
    chart: Path = CHART,
) -> str:
    """`helm template`: of a scenario's values, of `values`, or of the latter over the former."""
    return _template(yaml.safe_dump(dict(values or {})), scenario, name, version, kube, tuple(options), chart)


@cache
def _template(
    values: str, scenario: str | None, name: str, version: int, kube: str, options: tuple[str, ...], chart: Path
) -> str:
    arguments: list[str | Path] = ["template", name, chart, "--namespace", "llm", "--kube-version", kube, *options]
    if scenario:
        arguments += ["--values", CHART / "ci" / f"{scenario}-values.yaml"]
    with tempfile.NamedTemporaryFile("w", suffix=".yaml") as file:
        file.write(values)
        file.flush()
        return helm(*arguments, "--values", file.name, version=version)


def render(values: Mapping[str, Any] | None = None, **more: Any) -> list[Object]:
    # libyaml's loader: the pure one would be half of the time of these tests.
    return [found for found in yaml.load_all(template(values, **more), yaml.CSafeLoader) if found]


def one(objects: Sequence[Object], kind: str, name: str | None = None) -> Object:
    """The only object of its kind (and name)."""
    found = [o for o in objects if o["kind"] == kind and (name is None or o["metadata"]["name"] == name)]
    assert len(found) == 1, f"{len(found)} {kind} {name or ''}: {[o['metadata']['name'] for o in found]}"
    return found[0]


def pods(objects: Sequence[Object]) -> list[Object]:
    """Every pod template of the server, as {metadata, spec}."""
    found = []
    for item in objects:
        if item["kind"] == "Deployment":
            found.append(item["spec"]["template"])
        if item["kind"] == "LeaderWorkerSet":
            group = item["spec"]["leaderWorkerTemplate"]
            found += [group["leaderTemplate"], group["workerTemplate"]]
    return found


def pod(values: Mapping[str, Any], **more: Any) -> Object:
    """The server's pod specification."""
    [found] = pods(render(values, **more))
    return dict(found["spec"])


def server(spec: Object) -> Object:
    return dict(next(c for c in spec["containers"] if c["name"] == "radiance"))


def env(container: Object) -> dict[str, Any]:
    return {entry["name"]: entry.get("value", entry.get("valueFrom")) for entry in container["env"]}


def volume(spec: Object, name: str) -> Object:
    return dict(next(v for v in spec["volumes"] if v["name"] == name))


def mount(container: Object, name: str) -> Object:
    return dict(next(m for m in container["volumeMounts"] if m["name"] == name))


def selects(selector: Object, labels: Mapping[str, str]) -> bool:
    """A selector as the chart writes them: matchLabels, and matchExpressions with In."""
    wanted = [(key, [value]) for key, value in selector.get("matchLabels", {}).items()]
    for expression in selector.get("matchExpressions", []):
        assert expression["operator"] == "In"
        wanted.append((expression["key"], expression["values"]))
    assert wanted, "an empty selector selects everything"
    return all(labels.get(key) in values for key, values in wanted)


def walk(node: Any) -> list[Object]:
    """Every mapping in a tree, the outer ones first."""
    if isinstance(node, list):
        return [found for item in node for found in walk(item)]
    if isinstance(node, dict):
        return [node, *(found for item in node.values() for found in walk(item))]
    return []
