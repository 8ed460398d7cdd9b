"""Faults of well-known charts for LLM servers that this one must not have: ports, probes, start, stop, rollout, scaling.

The study behind it read and rendered production-stack, llm-d's modelservice, KServe's LLMInferenceService, the NIM chart, vLLM's
example chart, ollama-helm and kubeai; a docstring names whose fault it is.
test_pods.py and test_names.py have the rest.
"""

from __future__ import annotations

import pytest

from tests.chart.helm import CPU, GPU, env, one, pod, pods, render, server

PROBES = ("startupProbe", "livenessProbe", "readinessProbe")


@pytest.mark.parametrize("ports", [{}, {"http": 8080}, {"metrics": 9999}, {"http": 1234, "metrics": 4321}], ids=str)
def test_probes_and_services_follow_every_port(ports: dict[str, int]) -> None:
    """production-stack and vLLM's chart probe port 8000 whatever the container listens on; ollama-helm once did."""
    api, metrics = ports.get("http", 8000), ports.get("metrics", 9410)
    objects = render({**GPU, "ports": ports, "networkPolicy": {"enabled": True}})
    container = server(pods(objects)[0]["spec"])
    named = {port["name"]: port["containerPort"] for port in container["ports"]}
    assert named == {"http": api, "metrics": metrics}
    for probe in PROBES:
        assert container[probe]["httpGet"]["port"] == "metrics"
    arguments = container["args"]
    assert arguments[arguments.index("--port") + 1] == str(api)
    assert arguments[arguments.index("--metrics-port") + 1] == str(metrics)
    for service in (o for o in objects if o["kind"] == "Service"):
        assert {port["targetPort"] for port in service["spec"]["ports"]} <= set(named)
    policy = one(objects, "NetworkPolicy")
    assert {port["port"] for rule in policy["spec"]["ingress"] for port in rule["ports"]} == set(named)
    addresses = env(next(o for o in objects if o["kind"] == "Pod")["spec"]["containers"][0])
    assert addresses == {"API": "http://demo-radiance:8000", "LAUNCHER": f"http://demo-radiance-metrics:{metrics}"}


def test_each_probe_asks_its_own_question() -> None:
    """production-stack and KServe ask /health for all three; llm-d's and vLLM's charts have no startup probe."""
    container = server(pod(GPU))
    assert [container[probe]["httpGet"]["path"] for probe in PROBES] == ["/startupz", "/livez", "/readyz"]
    assert all("initialDelaySeconds" not in container[probe] for probe in PROBES)


@pytest.mark.parametrize("budget", [1, 299, 300, 301, 2405])
@pytest.mark.parametrize("period", [1, 7, 10])
def test_a_start_is_never_cut_before_the_launcher_cuts_it(budget: int, period: int) -> None:
    """Fixed budgets of 10 to 30 minutes kill large models while they load. Ours is the profile's, and the launcher ends first."""
    probe = server(pod({**CPU, "startup": {"budgetSeconds": budget}, "probes": {"periodSeconds": period}}))[
        "startupProbe"
    ]
    assert budget + 60 <= probe["failureThreshold"] * probe["periodSeconds"] < budget + 60 + period


def test_the_budget_is_the_profiles() -> None:
    for profile, budget in ((CPU, 300), (GPU, 1800)):
        probe = server(pod(profile))["startupProbe"]
        assert probe["failureThreshold"] * probe["periodSeconds"] == budget + 60


@pytest.mark.parametrize("scenario", ["autoscale", "lws"])
@pytest.mark.parametrize("kind", ["hpa", "keda"])
def test_the_autoscaler_targets_something_that_exists(scenario: str, kind: str) -> None:
    """The HPA of vLLM's chart targets a Deployment `vllm`, which never exists."""
    objects = render({"autoscaling": {"type": kind, "keda": {"serverAddress": "http://p:9090"}}}, scenario=scenario)
    scaler = one(objects, {"hpa": "HorizontalPodAutoscaler", "keda": "ScaledObject"}[kind])
    target = scaler["spec"]["scaleTargetRef"]
    found = one(objects, target["kind"], target["name"])
    assert found["apiVersion"] == target["apiVersion"]
    assert "replicas" not in found["spec"], "an upgrade would undo what the autoscaler did"


def test_a_stop_drains_before_it_kills() -> None:
    """production-stack and four others have no preStop and no drain: a rollout cuts running answers."""
    for more, grace in (({}, 85), ({"drain": {"preStopSeconds": 0, "graceSeconds": 300}}, 320)):
        spec = pod({**GPU, **more})
        container = server(spec)
        [before] = [int(part) for part in container["lifecycle"]["preStop"]["exec"]["command"] if part.isdigit()]
        given = container["args"]
        delay, within = (int(given[given.index(name) + 1]) for name in ("--drain-delay-seconds", "--grace-seconds"))
        assert spec["terminationGracePeriodSeconds"] == grace
        assert before + delay + within + 15 == grace


def test_a_rollout_waits_for_no_gpu_that_is_not_there() -> None:
    """Kubernetes' default starts the new pod first: without a spare GPU that waits for ever."""
    assert one(render(GPU), "Deployment")["spec"]["strategy"] == {"type": "Recreate"}
    many = one(render({**GPU, "replicas": 3}), "Deployment")["spec"]["strategy"]
    assert many == {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 0, "maxUnavailable": 1}}
    own = {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}}
    assert one(render({**GPU, "strategy": own}), "Deployment")["spec"]["strategy"] == own


def test_progress_may_take_as_long_as_a_start() -> None:
    """The default of 600 s calls every large model's rollout failed."""
    for profile, budget in ((CPU, 300), (GPU, 1800)):
        assert one(render(profile), "Deployment")["spec"]["progressDeadlineSeconds"] > 600 + budget


def test_a_disruption_budget_comes_with_the_second_replica() -> None:
    kinds = [{o["kind"] for o in render({**GPU, "replicas": count})} for count in (1, 2)]
    assert ["PodDisruptionBudget" in found for found in kinds] == [False, True]
    assert one(render({**GPU, "replicas": 2}), "PodDisruptionBudget")["spec"]["maxUnavailable"] == 1
