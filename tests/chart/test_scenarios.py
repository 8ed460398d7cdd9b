"""Every scenario of helm/ci: linted and rendered by Helm 3 and 4, accepted by Kubernetes 1.28 to the newest, as recorded.

`make chart-golden` writes tests/chart/golden anew; the diff is what a reviewer should read.
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.chart import helm, schemas

GOLDEN = Path(__file__).parent / "golden"
each_scenario = pytest.mark.parametrize("scenario", helm.SCENARIOS)
each_version = pytest.mark.parametrize("version", helm.VERSIONS)


def short(node: Any) -> Any:
    """Scripts, dashboards and rules are files of their own; here their hash is enough."""
    if isinstance(node, dict):
        if "groups" in node:
            return {"groups": [group["name"] for group in node["groups"]]}
        return {key: short(value) for key, value in node.items()}
    if isinstance(node, list):
        return [short(item) for item in node]
    if isinstance(node, str) and node.count("\n") > 10:
        return f"{len(node.splitlines())} lines, sha256 {hashlib.sha256(node.encode()).hexdigest()[:16]}"
    return node


def golden(scenario: str) -> str:
    objects = sorted(helm.render(scenario=scenario), key=lambda o: (o["kind"], o["metadata"]["name"]))
    return yaml.safe_dump_all([short(o) for o in objects], sort_keys=False, width=140)


def test_the_scenarios_are_the_ones_that_were_promised() -> None:
    wanted = "cpu-smoke nvidia-1gpu nvidia-tp8 amd-2gpu offline secrets autoscale lws monitoring"
    assert set(wanted.split()) == set(helm.SCENARIOS)


@each_scenario
@each_version
def test_lint_finds_nothing(scenario: str, version: int) -> None:
    helm.helm(
        "lint", helm.CHART, "--strict", "--values", helm.CHART / "ci" / f"{scenario}-values.yaml", version=version
    )


@each_scenario
def test_both_helms_render_the_same(scenario: str) -> None:
    assert helm.render(scenario=scenario, version=3) == helm.render(scenario=scenario, version=4)


@each_scenario
def test_a_scenario_renders_as_recorded(scenario: str) -> None:
    path, made = GOLDEN / f"{scenario}.yaml", golden(scenario)
    if os.environ.get("WRITE_GOLDEN"):
        path.parent.mkdir(exist_ok=True)
        path.write_text(made)
    assert path.read_text() == made, "if the change is meant: `make chart-golden`"


def of_release(scenario: str, release: str) -> list[helm.Object]:
    """Only device claims depend on the release (they came with 1.32, and changed their version twice)."""
    if scenario != "nvidia-tp8":
        return helm.render(scenario=scenario)
    claims = int(release.split(".")[1]) >= 32
    return helm.render({"accelerator": {"dra": {"enabled": claims}}}, scenario=scenario, kube=release)


@pytest.mark.parametrize("scenario", [name for name in helm.SCENARIOS if name != "nvidia-tp8"])
def test_the_oldest_release_gets_the_same_as_the_newest(scenario: str) -> None:
    assert helm.render(scenario=scenario, kube=schemas.releases()[0]) == helm.render(scenario=scenario)


@each_scenario
@pytest.mark.parametrize("release", schemas.releases())
def test_kubernetes_takes_it(scenario: str, release: str) -> None:
    for item in of_release(scenario, release):
        schemas.check(item, release)


@pytest.mark.parametrize("release", schemas.releases())
def test_kubernetes_takes_the_hpa_and_an_inline_secret(release: str) -> None:
    values = {"autoscaling": {"type": "hpa"}, "allowInlineSecrets": True, "apiKey": {"value": "k"}}
    objects = helm.render(values, scenario="autoscale")
    assert {"HorizontalPodAutoscaler", "Secret"} <= {o["kind"] for o in objects}
    for item in objects:
        schemas.check(item, release)


@pytest.mark.parametrize(
    ("kind", "path", "value"),
    [
        ("Deployment", ("spec", "replicaz"), 1),
        ("Deployment", ("spec", "replicas"), "one"),
        ("PodMonitor", ("spec", "podMetricsEndpoints", 0, "intervall"), "15s"),
        ("PodMonitor", ("spec", "selector"), None),
        ("ScaledObject", ("spec", "triggers", 0, "metadata"), "sum(x)"),
        ("ScaledObject", ("spec", "minReplicas"), 1),
        ("HTTPRoute", ("spec", "rules", 0, "backendRefs", 0, "port"), "http"),
        ("LeaderWorkerSet", ("spec", "leaderWorkerTemplate", "restartPolicy"), "Always"),
        ("LeaderWorkerSet", ("spec", "leaderWorkerTemplate", "workerTemplate", "spec", "enableServiceLink"), False),
    ],
)
def test_a_wrong_field_is_noticed(kind: str, path: tuple[str | int, ...], value: Any) -> None:
    """The checks above are worth nothing if they look past a mistake."""
    everything = [o for scenario in helm.SCENARIOS for o in helm.render(scenario=scenario)]
    item = next(o for o in everything if o["kind"] == kind)
    schemas.check(item, schemas.releases()[-1])
    place: Any = item
    for key in path[:-1]:
        place = place[key]
    if value is None:
        del place[path[-1]]
    else:
        place[path[-1]] = value
    with pytest.raises(Exception, match=r"(?i)validat|not valid|additional|required|is not|unexpected"):
        schemas.check(item, schemas.releases()[-1])
