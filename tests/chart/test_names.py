"""Faults of well-known charts for LLM servers that this one must not have: names, labels, what is rendered and what not.

See test_faults.py.
"""

from __future__ import annotations

import json
import re

import pytest

from tests.chart import helm
from tests.chart.helm import GPU, one, pods, render, selects, walk

DNS_LABEL = re.compile(r"^[a-z]([-a-z0-9]*[a-z0-9])?$")
each_scenario = pytest.mark.parametrize("scenario", helm.SCENARIOS)


@each_scenario
def test_inside_the_release_ports_have_names(scenario: str) -> None:
    for node in walk(render(scenario=scenario)):
        for key in ("targetPort", "httpGet"):
            found = node.get(key)
            port = found.get("port") if isinstance(found, dict) else found
            assert port is None or isinstance(port, str), node
        if "service" in node and "port" in node["service"]:  # of an Ingress
            assert node["service"]["port"] == {"name": "http"}


@each_scenario
def test_nothing_is_rendered_when_switched_off(scenario: str) -> None:
    """production-stack renders a Service, a claim and an empty Secret for a disabled model."""
    assert render({"enabled": False}, scenario=scenario) == []


def test_no_secret_without_something_secret() -> None:
    for scenario in helm.SCENARIOS:
        assert not [o for o in render(scenario=scenario) if o["kind"] == "Secret"]
    secret = one(render({**GPU, "allowInlineSecrets": True, "apiKey": {"value": "k"}}), "Secret")
    assert secret["stringData"] == {"api-key": "k"}


@pytest.mark.parametrize("name", ["demo", "a.b", "7b", "Qwen3".lower(), "x" * 53, "radiance", "r-" + "y" * 51], ids=str)
def test_names_are_names_whatever_the_model_is_called(name: str) -> None:
    """production-stack renders a Service `demo-Qwen/Qwen3-8B-engine-service`; dots and digits in front fail later, in the cluster."""
    profile = {
        "schema_version": 1, "name": "mine", "extends": "qwen3.8-27b-mtp", "served_name": "Qwen/Qwen3.8-27B",
        "model": {"id": "Qwen/Qwen3.8-27B"},
    }  # fmt: skip
    values = {
        "profile": "mine", "profiles": {"mine": profile}, "models": {"create": True}, "cache": {"create": True},
        "monitoring": {"dashboard": {"enabled": True}, "rules": {"enabled": True}, "podMonitor": {"enabled": True}},
        "ingress": {"enabled": True, "hosts": [{}]}, "allowInlineSecrets": True, "apiKey": {"value": "k"},
    }  # fmt: skip
    objects = render(values, name=name)
    assert len(objects) > 12
    for item in objects:
        found = item["metadata"]["name"]
        assert DNS_LABEL.match(found), found
        assert len(found) <= 63
        assert found != "vllm"
        for value in item["metadata"]["labels"].values():
            assert re.match(r"^([A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?)?$", value), value
            assert len(value) <= 63


def test_long_names_that_begin_alike_stay_apart() -> None:
    names = [{(o["kind"], o["metadata"]["name"]) for o in render(GPU, name="x" * 50 + end)} for end in ("one", "two")]
    assert names[0] & names[1] == set()


@pytest.mark.parametrize("scenario", [*helm.SCENARIOS])
def test_two_releases_in_one_namespace_do_not_meet(scenario: str) -> None:
    """vLLM's chart labels everything `environment: test`, so two of them serve each other's requests; production-stack once did."""
    ours, theirs = (render(scenario=scenario, name=name) for name in ("one", "two"))
    names = [{(o["kind"], o["metadata"]["name"]) for o in objects} for objects in (ours, theirs)]
    assert names[0] & names[1] == set()
    for service in (o for o in ours if o["kind"] == "Service"):
        for template in pods(theirs):
            assert not service["spec"]["selector"].items() <= template["metadata"]["labels"].items()


@each_scenario
def test_selectors_select_this_releases_servers_and_nothing_else(scenario: str) -> None:
    """But for the metrics of a group's workers, which are no servers and have a Service of their own."""
    objects = render(scenario=scenario)
    everything = [*pods(objects), *(o for o in objects if o["kind"] == "Pod")]
    labels = [found["metadata"]["labels"] for found in everything]
    services = [o for o in objects if o["kind"] == "Service"]
    budgets = [o for o in objects if o["kind"] == "PodDisruptionBudget"]  # counts groups, so leaders
    assert services
    for item in [*services, *budgets]:
        selector = item["spec"]["selector"]
        selector = selector if item in budgets else {"matchLabels": selector}
        chosen = {found["app.kubernetes.io/component"] for found in labels if selects(selector, found)}
        assert chosen == {"worker" if item["metadata"]["name"] == "demo-radiance-worker-metrics" else "server"}
    for item in objects:
        if item["kind"] == "Deployment":
            assert selects(item["spec"]["selector"], item["spec"]["template"]["metadata"]["labels"])
            assert not [key for key in item["spec"]["selector"]["matchLabels"] if "version" in key or "chart" in key]


def test_the_dashboard_has_no_data_source_of_its_own() -> None:
    """Two of production-stack's three dashboards want the data source with the uid `prometheus`."""
    found = one(render(scenario="monitoring"), "ConfigMap", "demo-radiance-dashboard")
    assert found["metadata"]["labels"]["grafana_dashboard"] == "1"
    board = json.loads(found["data"]["radiance.json"])
    uids = {
        node["uid"] for node in walk(board) if isinstance(node.get("uid"), str) and node.get("type") == "prometheus"
    }
    assert uids == {"${datasource}"}


@each_scenario
def test_every_scenario_can_be_tested_and_has_notes(scenario: str) -> None:
    """production-stack, llm-d and vLLM's chart have neither notes nor tests; ollama-helm's test fetches /."""
    objects = render(scenario=scenario)
    tests = {
        o["metadata"]["name"].rpartition("-")[2]
        for o in objects
        if o["metadata"].get("annotations", {}).get("helm.sh/hook") == "test"
    }
    assert tests == {"models", "completion", "metrics", "head"}
    script = one(objects, "ConfigMap", "demo-radiance-scripts")["data"]["smoke.py"]
    assert script.strip() == (helm.CHART / "files" / "smoke.py").read_text().strip()
    values = helm.CHART / "ci" / f"{scenario}-values.yaml"
    notes = helm.helm("install", "demo", helm.CHART, "--dry-run=client", "-n", "llm", "-f", values).partition("NOTES:")[
        2
    ]
    for words in (
        "curl $API/v1/models",
        "radiance status --port 9410",
        "helm -n llm test demo",
        "demo-radiance-metrics",
    ):
        assert words in notes
