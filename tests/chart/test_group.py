"""The pods of a LeaderWorkerSet: a worker is a server without an API, supervised, watched and stopped as one."""

from __future__ import annotations

from tests.chart import helm
from tests.chart.helm import one, pods, render, selects, server
from tests.chart.test_names import DNS_LABEL

#: what makes a node the leader or a worker, at the end of its arguments; $(...) is put in by the set's controller
ROLES = (["--node-rank", "0"], ["--node-rank", "$(LWS_WORKER_INDEX)", "--headless"])


def test_a_worker_is_the_leader_without_an_api() -> None:
    """Entry, environment, resources, probes, preStop and time to end: what is good for one launcher is for the other."""
    values = {
        "ports": {"http": 1234, "metrics": 4321},
        "drain": {"preStopSeconds": 7, "graceSeconds": 300},
        "vllmArgs": ["--enforce-eager"],
    }
    leader, worker = (template["spec"] for template in pods(render(values, scenario="lws")))
    ours, theirs = server(leader), server(worker)
    assert ours["args"][0] == "serve"
    assert "command" not in ours, "the image's entry"
    for container, role in ((ours, ROLES[0]), (theirs, ROLES[1])):
        assert container["args"][-len(role) :] == role
        container["args"] = container["args"][: -len(role)]
    assert {port["name"]: port["containerPort"] for port in ours.pop("ports")} == {"http": 1234, "metrics": 4321}
    assert {port["name"]: port["containerPort"] for port in theirs.pop("ports")} == {"metrics": 4321}
    assert theirs == ours
    assert {"startupProbe", "livenessProbe", "readinessProbe", "lifecycle", "terminationMessagePolicy"} <= set(theirs)
    assert worker.pop("initContainers")[:-1] == leader.pop("initContainers")
    del leader["containers"], worker["containers"]
    assert worker == leader
    assert worker["terminationGracePeriodSeconds"] == 7 + 5 + 300 + 15


def test_a_worker_waits_for_the_port_of_its_leaders_launcher() -> None:
    """Its startup probe must not count while the leader downloads."""
    worker = pods(render({"ports": {"metrics": 4321}}, scenario="lws"))[1]["spec"]
    last = worker["initContainers"][-1]
    assert last["name"] == "wait-for-leader"
    assert last["args"][:2] == ["$(LWS_LEADER_ADDRESS)", "4321"]


def test_a_policy_lets_prometheus_to_all_nodes_and_nodes_to_each_other() -> None:
    """A worker asks the leader's metrics port, and ranks meet at ports that vLLM chooses: inside the release every port is open."""
    prometheus = {"namespaceSelector": {"matchLabels": {"name": "monitoring"}}}
    policy = {"enabled": True, "apiFrom": [prometheus], "metricsFrom": [prometheus], "egress": {"enabled": True}}
    objects = render({"networkPolicy": policy}, scenario="lws")
    spec, labels = one(objects, "NetworkPolicy")["spec"], [t["metadata"]["labels"] for t in pods(objects)]
    assert all(selects(spec["podSelector"], found) for found in labels)
    to_metrics = [rule for rule in spec["ingress"] if "metrics" in [port["port"] for port in rule.get("ports", [])]]
    assert [prometheus in rule["from"] for rule in to_metrics] == [True]
    for rules, peer in ((spec["ingress"], "from"), (spec["egress"], "to")):
        [inside] = [rule for rule in rules if "ports" not in rule]
        [group] = inside[peer]
        assert all(selects(group["podSelector"], found) for found in labels)


def test_names_of_a_group_fit_whatever_the_release_is_called() -> None:
    for name in ("7b", "a.b", "x" * 53):
        services = [o["metadata"]["name"] for o in render(scenario="lws", name=name) if o["kind"] == "Service"]
        assert len(services) == 3
        for found in services:
            assert DNS_LABEL.match(found), found
            assert len(found) <= 63


def test_the_notes_say_where_a_workers_figures_are() -> None:
    values = helm.CHART / "ci" / "lws-values.yaml"
    notes = helm.helm("install", "demo", helm.CHART, "--dry-run=client", "-f", values).partition("NOTES:")[2]
    services = [o["metadata"]["name"] for o in render(scenario="lws") if o["kind"] == "Service"]
    assert "demo-radiance-worker-metrics" in services
    assert "service/demo-radiance-worker-metrics" in notes
    assert "pod/demo-radiance-group-0-1" in notes
