"""What the chart asks of metrics exists, with the labels it asks by; and what it copies is what it renders.

The anchors' faults: production-stack's KEDA query selects by the label `model` where vLLM writes `model_name`, and sums nothing;
an alert of llm-d's names a metric without its _total. Whether the names exist in vLLM is tested over the recorded renders in
tests/deploy/test_chart.py, where a vLLM is installed.
"""

from __future__ import annotations

import re
from typing import Any

import pytest
import yaml
from promql import labels, names
from tools import promtool

from tests.chart import helm
from tests.chart.helm import GPU, one, pods, render, selects, server

PROMETHEUS = {"autoscaling": {"type": "keda", "keda": {"serverAddress": "http://p:9090"}}}
#: what Prometheus' operator puts on every series of a pod's target
TARGET = {"namespace", "pod", "container", "endpoint", "job", "instance"}


def query(objects: list[helm.Object]) -> str:
    [trigger] = one(objects, "ScaledObject")["spec"]["triggers"]
    return str(trigger["metadata"]["query"])


def test_kedas_query_gives_one_number_of_this_release() -> None:
    text = query(render(GPU | PROMETHEUS))
    assert text.startswith("sum(")
    assert labels(text) <= TARGET
    assert 'namespace="llm"' in text
    assert names(text) == {"vllm:num_requests_waiting"}


@pytest.mark.parametrize("scenario", ["autoscale", "lws"])
def test_kedas_query_finds_the_pods_of_this_release_and_no_others(scenario: str) -> None:
    text = query(render(PROMETHEUS, scenario=scenario))
    [pattern] = re.findall(r'pod=~"([^"]*)"', text)
    if scenario == "lws":
        ours, theirs = ["demo-radiance-group-0", "demo-radiance-group-11"], ["demo-radiance-group-0-1"]
    else:
        ours, theirs = ["demo-radiance-5d4f8c7b9-x2x4z"], ["demo-radiance-metrics"]
    theirs += ["demo-radiance-b-5d4f8c7b9-x2x4z", "a-demo-radiance-5d4f8c7b9-x2x4z"]
    for name, wanted in [*((n, True) for n in ours), *((n, False) for n in theirs)]:
        # Prometheus anchors a pattern at both ends.
        assert bool(re.fullmatch(pattern, name)) is wanted, name


def test_prometheus_can_read_every_expression_that_is_rendered(tmp_path: Any) -> None:
    groups = one(render(scenario="monitoring"), "PrometheusRule")["spec"]["groups"]
    asked = [
        {"record": f"keda:{i}", "expr": query(render(PROMETHEUS, scenario=s))}
        for i, s in enumerate(["autoscale", "lws"])
    ]
    rules = tmp_path / "rules.yml"
    rules.write_text(yaml.safe_dump({"groups": [*groups, {"name": "keda", "rules": asked}]}))
    done = promtool("check", "rules", rules)
    assert done.returncode == 0, done.stdout.decode()


def test_the_rules_are_those_that_are_tested() -> None:
    rendered = one(render(scenario="monitoring"), "PrometheusRule")["spec"]["groups"]
    tested = []
    for name in ("recording", "alerts"):
        tested += yaml.safe_load((helm.ROOT / "deploy" / "prometheus" / f"{name}.yml").read_text())["groups"]
    for rule in (rule for group in rendered for rule in group["rules"] if "alert" in rule):
        url = rule["annotations"]["runbook_url"]
        assert url.startswith("https://example.org/radiance/blob/main/docs/operations.md#")
        rule["annotations"]["runbook_url"] = url.removeprefix("https://example.org/radiance/blob/main/")
    assert rendered == tested


def targets(objects: list[helm.Object], kind: str) -> list[tuple[str, str, str]]:
    """What Prometheus' operator makes of the monitor: (component, name of the container's port, job) of every target."""
    monitor, found = one(objects, kind)["spec"], []
    for template in pods(objects):
        labels = template["metadata"]["labels"]
        own = {port["name"]: port["name"] for port in server(template["spec"])["ports"]}
        services = [
            {port["name"]: port["targetPort"] for port in service["spec"]["ports"]}
            for service in objects
            if service["kind"] == "Service" and selects(monitor["selector"], service["metadata"]["labels"])
            if selects({"matchLabels": service["spec"]["selector"]}, labels)
        ]
        ways = services if kind == "ServiceMonitor" else [own] * selects(monitor["selector"], labels)
        for endpoint in monitor["endpoints" if kind == "ServiceMonitor" else "podMetricsEndpoints"]:
            [job] = [r["replacement"] for r in endpoint["relabelings"] if r["targetLabel"] == "job"]
            ports = [way[endpoint["port"]] for way in ways if endpoint["port"] in way]
            assert set(ports) <= set(own), "a Service's port that leads nowhere"
            found += [(labels["app.kubernetes.io/component"], port, job) for port in ports]
    return sorted(found)


@pytest.mark.parametrize("kind", ["PodMonitor", "ServiceMonitor"])
@pytest.mark.parametrize("passthrough", [True, False])
@pytest.mark.parametrize("scenario", ["nvidia-1gpu", "lws"])
def test_monitors_give_the_jobs_that_alerts_ask_for(scenario: str, passthrough: bool, kind: str) -> None:
    """Every launcher once, those of a group's workers too; vLLM's own port, where it is scraped, on servers alone."""
    monitoring = {"passthrough": passthrough, kind[0].lower() + kind[1:]: {"enabled": True}}
    objects = render({"monitoring": monitoring}, scenario=scenario)
    assert ("--passthrough" in server(pods(objects)[0]["spec"])["args"]) is passthrough
    wanted = [("server", "metrics", "radiance")]
    if not passthrough:
        wanted.append(("server", "http", "vllm"))
    if scenario == "lws":
        wanted.append(("worker", "metrics", "radiance"))
    assert targets(objects, kind) == sorted(wanted)
    asked = {job for rule in _alerts() for job in re.findall(r'job="([^"]*)"', rule)}
    assert asked
    assert asked <= {job for _, _, job in wanted}


def _alerts() -> list[str]:
    groups = yaml.safe_load((helm.CHART / "files" / "alerts.yml").read_text())["groups"]
    return [rule["expr"] for group in groups for rule in group["rules"]]


def test_the_hpa_asks_for_the_metric_that_the_page_tells_how_to_make() -> None:
    page = (helm.ROOT / "docs" / "kubernetes.md").read_text()
    metric = one(render({**GPU, "autoscaling": {"type": "hpa"}}), "HorizontalPodAutoscaler")["spec"]["metrics"][0][
        "pods"
    ]["metric"]["name"]
    [rule] = [block for block in re.findall(r"```yaml\n(.*?)```", page, re.DOTALL) if "seriesQuery" in block]
    [found] = yaml.safe_load(rule)["rules"]["custom"]
    assert found["name"]["as"] == metric
    series = found["seriesQuery"].partition("{")[0]
    assert series == next(iter(names(query(render(GPU | PROMETHEUS)))))
    assert "<<.Series>>" in found["metricsQuery"]
