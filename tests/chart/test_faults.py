"""What well-known charts for LLM servers get wrong, one test for each: this chart must not.

The study behind it read and rendered production-stack, llm-d's modelservice, KServe's LLMInferenceService, the NIM chart, vLLM's
example chart, ollama-helm and kubeai; a docstring names whose fault it is.
"""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from tests.chart import helm
from tests.chart.helm import CPU, GPU, env, mount, one, pod, pods, render, server, volume

PROBES = ("startupProbe", "livenessProbe", "readinessProbe")
DNS_LABEL = re.compile(r"^[a-z]([-a-z0-9]*[a-z0-9])?$")
each_scenario = pytest.mark.parametrize("scenario", helm.SCENARIOS)


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


@each_scenario
def test_inside_the_release_ports_have_names(scenario: str) -> None:
    for node in _walk(render(scenario=scenario)):
        for key in ("targetPort", "httpGet"):
            found = node.get(key)
            port = found.get("port") if isinstance(found, dict) else found
            assert port is None or isinstance(port, str), node
        if "service" in node and "port" in node["service"]:  # of an Ingress
            assert node["service"]["port"] == {"name": "http"}


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


@pytest.mark.parametrize(
    ("sizes", "gpus"),
    [
        ({}, 1),
        ({"tensor_parallel_size": 8}, 8),
        ({"tensor_parallel_size": 2, "pipeline_parallel_size": 2}, 4),
        ({"data_parallel_size": 2}, 2),
    ],
    ids=str,
)
@pytest.mark.parametrize("way", ["overrides", "profile"])
def test_shared_memory_and_gpus_follow_the_parallel_sizes(way: str, sizes: dict[str, int], gpus: int) -> None:
    """production-stack mounts /dev/shm only for its own value, so tensor parallel through extra arguments ends with SIGBUS.

    Here such arguments are refused (test_a_refused.py), and both ways to say it count.
    """
    mine = {"schema_version": 1, "name": "mine", "extends": "qwen3.8-27b-mtp", **sizes}
    values: dict[str, Any] = (
        {**GPU, "overrides": sizes} if way == "overrides" else {"profile": "mine", "profiles": {"mine": mine}}
    )
    spec = pod(values)
    assert mount(server(spec), "shm")["mountPath"] == "/dev/shm"
    assert volume(spec, "shm")["emptyDir"] == {"medium": "Memory", "sizeLimit": f"{gpus + 1}Gi"}
    assert server(spec)["resources"]["limits"] == {"nvidia.com/gpu": gpus}


def test_an_override_reaches_launcher_fetcher_and_probe() -> None:
    spec = pod(
        {
            **GPU,
            "overrides": {
                "model": {"revision": "abc"},
                "startup_budget_seconds": 900,
                "kv_cache_memory_bytes": 536870912,
            },
        }
    )
    sets = [
        "--set",
        "kv_cache_memory_bytes=536870912",
        "--set",
        'model={"revision":"abc"}',
        "--set",
        "startup_budget_seconds=900",
    ]
    for container in (server(spec), spec["initContainers"][0]):
        at = container["args"].index("--set")
        assert container["args"][at : at + 6] == sets
    assert server(spec)["startupProbe"]["failureThreshold"] == 96


@each_scenario
def test_shared_memory_is_always_there(scenario: str) -> None:
    for template in pods(render(scenario=scenario)):
        assert mount(server(template["spec"]), "shm")["mountPath"] == "/dev/shm"
        assert volume(template["spec"], "shm")["emptyDir"]["medium"] == "Memory"


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
    objects = render(scenario=scenario)
    servers = [
        t["metadata"]["labels"]
        for t in pods(objects)
        if t["metadata"]["labels"]["app.kubernetes.io/component"] == "server"
    ]
    others = [o["metadata"]["labels"] for o in objects if o["kind"] == "Pod"]
    others += [t["metadata"]["labels"] for t in pods(objects) if t["metadata"]["labels"] not in servers]
    assert servers
    for service in (o for o in objects if o["kind"] == "Service"):
        selector = service["spec"]["selector"].items()
        assert all(selector <= labels.items() for labels in servers)
        assert not any(selector <= labels.items() for labels in others)
    for item in objects:
        if item["kind"] == "Deployment":
            assert item["spec"]["selector"]["matchLabels"].items() <= servers[0].items()
            assert not [key for key in item["spec"]["selector"]["matchLabels"] if "version" in key or "chart" in key]


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


@each_scenario
def test_pods_are_locked_down(scenario: str) -> None:
    """production-stack sets runAsNonRoot: false; most mount the service account's token and leave service links on."""
    objects = render(scenario=scenario)
    specs = [template["spec"] for template in pods(objects)] + [o["spec"] for o in objects if o["kind"] == "Pod"]
    for spec in specs:
        assert spec["automountServiceAccountToken"] is False
        assert spec["enableServiceLinks"] is False
        assert spec["securityContext"]["runAsNonRoot"] is True
        assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        assert not spec.get("hostIPC")
        assert not spec.get("hostNetwork")
        for container in [*spec.get("initContainers", []), *spec["containers"]]:
            context = container["securityContext"]
            assert context["allowPrivilegeEscalation"] is False
            assert context["capabilities"] == {"drop": ["ALL"]}
            assert "runAsUser" not in context, "the image's own, or the one OpenShift chooses"
    account = one(objects, "ServiceAccount")
    assert account["automountServiceAccountToken"] is False


def test_the_runtime_class_is_nobodys_guess() -> None:
    """production-stack asks for the class `nvidia` where none may be."""
    assert "runtimeClassName" not in pod(GPU)
    assert pod({**GPU, "runtimeClassName": "nvidia"})["runtimeClassName"] == "nvidia"


@pytest.mark.parametrize(
    ("accelerator", "resource", "tag", "taint"),
    [
        ({}, {"nvidia.com/gpu": 1}, "cuda", "nvidia.com/gpu"),
        ({"type": "amd"}, {"amd.com/gpu": 1}, "rocm", "amd.com/gpu"),
        ({"resource": "nvidia.com/mig-3g.40gb", "count": 2}, {"nvidia.com/mig-3g.40gb": 2}, "cuda", "nvidia.com/gpu"),
    ],
    ids=str,
)
def test_resource_image_and_toleration_follow_the_accelerator(
    accelerator: dict[str, Any], resource: dict[str, int], tag: str, taint: str
) -> None:
    """Most charts know NVIDIA alone; none but ollama-helm changes the image with the accelerator."""
    spec = pod({**GPU, "accelerator": accelerator})
    assert server(spec)["resources"]["limits"] == resource
    assert server(spec)["image"] == f"radiance:0.1.0-{tag}"
    assert [t["key"] for t in spec["tolerations"]] == [taint]


def test_a_cpu_profile_asks_for_no_gpu() -> None:
    spec = pod(CPU)
    assert "resources" not in server(spec)
    assert "tolerations" not in spec
    assert server(spec)["image"].endswith("-cpu")


def test_the_digest_wins() -> None:
    digest = "sha256:" + "a" * 64
    image = server(pod({**GPU, "image": {"repository": "r.example/radiance", "tag": "x", "digest": digest}}))["image"]
    assert image == f"r.example/radiance@{digest}"


def test_a_model_on_a_read_only_claim_is_not_written_to() -> None:
    """llm-d's chart mounts the claim read-only although the hub library writes locks into it."""
    claim = {"existingClaim": "m", "accessModes": ["ReadOnlyMany"]}
    spec = pod({**GPU, "models": {**claim, "readOnly": True}})
    assert volume(spec, "models")["persistentVolumeClaim"] == {"claimName": "m", "readOnly": True}
    assert mount(server(spec), "models")["readOnly"] is True
    assert env(server(spec))["HF_HUB_OFFLINE"] == "1"
    assert spec["initContainers"][0]["args"][-1] == "--offline"
    spec = pod({**GPU, "models": {"existingClaim": "m"}})
    assert "readOnly" not in volume(spec, "models")["persistentVolumeClaim"]
    assert "readOnly" not in mount(server(spec), "models")
    assert "HF_HUB_OFFLINE" not in env(server(spec))


def test_offline_asks_nobody() -> None:
    """No chart but NIM's has it (production-stack #838)."""
    spec = pod({**GPU, "offline": True, "models": {"existingClaim": "m"}})
    for container in [*spec["initContainers"], server(spec)]:
        assert env(container)["HF_HUB_OFFLINE"] == "1"
        assert env(container)["TRANSFORMERS_OFFLINE"] == "1"
    assert spec["initContainers"][0]["args"][-1] == "--offline"


def test_the_download_has_a_log_and_no_deadline_of_a_probe() -> None:
    """ollama-helm downloads in postStart: no log, and probes call the pod unhealthy meanwhile."""
    spec = pod(GPU)
    [fetch] = spec["initContainers"]
    assert fetch["args"] == ["fetch", "--profile", "qwen3.8-27b-mtp"]
    assert fetch["image"] == server(spec)["image"]
    assert fetch["volumeMounts"] == server(spec)["volumeMounts"]
    assert "postStart" not in server(spec)["lifecycle"]
    assert pod({**GPU, "fetch": {"enabled": False}}).get("initContainers") is None


def test_compiled_code_has_a_volume() -> None:
    """production-stack, llm-d and vLLM's chart compile anew at each start."""
    spec = pod({**GPU, "cache": {"create": True}})
    assert volume(spec, "cache")["persistentVolumeClaim"] == {"claimName": "demo-radiance-cache"}
    where = mount(server(spec), "cache")["mountPath"]
    for name in ("VLLM_CACHE_ROOT", "TRITON_CACHE_DIR", "XDG_CACHE_HOME"):
        assert env(server(spec))[name].startswith(where)


def test_claims_outlive_the_release() -> None:
    claims = [
        o
        for o in render({**GPU, "models": {"create": True}, "cache": {"create": True, "keep": False}})
        if "Claim" in o["kind"]
    ]
    kept = {o["metadata"]["name"]: o["metadata"].get("annotations", {}).get("helm.sh/resource-policy") for o in claims}
    assert kept == {"demo-radiance-models": "keep", "demo-radiance-cache": None}


def test_a_changed_profile_or_secret_restarts_the_pod() -> None:
    """Most charts leave the old pod running with the old configuration."""
    mine = {"schema_version": 1, "name": "mine", "extends": "qwen3.8-27b-mtp"}
    values = {"profile": "mine", "allowInlineSecrets": True, "apiKey": {"value": "a"}}
    first, other, key = (
        pods(render(v))[0]["metadata"]["annotations"]
        for v in (
            {**values, "profiles": {"mine": mine}},
            {**values, "profiles": {"mine": {**mine, "rerank": 64}}},
            {**values, "profiles": {"mine": mine}, "apiKey": {"value": "b"}},
        )
    )
    assert first["checksum/profiles"] != other["checksum/profiles"]
    assert first["checksum/secrets"] == other["checksum/secrets"]
    assert first["checksum/secrets"] != key["checksum/secrets"]


def test_the_dashboard_has_no_data_source_of_its_own() -> None:
    """Two of production-stack's three dashboards want the data source with the uid `prometheus`."""
    found = one(render(scenario="monitoring"), "ConfigMap", "demo-radiance-dashboard")
    assert found["metadata"]["labels"]["grafana_dashboard"] == "1"
    board = json.loads(found["data"]["radiance.json"])
    uids = {
        node["uid"] for node in _walk(board) if isinstance(node.get("uid"), str) and node.get("type") == "prometheus"
    }
    assert uids == {"${datasource}"}


def _walk(node: Any) -> list[dict[str, Any]]:
    if isinstance(node, list):
        return [found for item in node for found in _walk(item)]
    if isinstance(node, dict):
        return [node, *(found for item in node.values() for found in _walk(item))]
    return []


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
