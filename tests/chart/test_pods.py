"""Faults of well-known charts for LLM servers that this one must not have: what a pod may, gets, and keeps.

See test_faults.py.
"""

from __future__ import annotations

from typing import Any

import pytest

from tests.chart import helm
from tests.chart.helm import CPU, GPU, env, mount, one, pod, pods, render, server, volume

each_scenario = pytest.mark.parametrize("scenario", helm.SCENARIOS)


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


@pytest.mark.parametrize("section", ["model", "drafter", "tokenizer"])
def test_whatever_comes_from_the_hub_is_fetched_before(section: str) -> None:
    local = {"path": "/models/m"}
    mine = {
        "schema_version": 1, "name": "mine", "summary": "s", "served_name": "m", "model": local, "drafter": local,
        "tokenizer": local, "speculative": {"method": "eagle3", "num_speculative_tokens": 2}, "startup_budget_seconds": 600,
    }  # fmt: skip
    folders, hub = mine, {**mine, section: {"id": "a/b"}}
    assert not pod({"profile": "mine", "profiles": {"mine": folders}})["initContainers"]
    assert pod({"profile": "mine", "profiles": {"mine": hub}})["initContainers"][0]["args"][0] == "fetch"


def test_an_override_of_the_model_takes_the_place_of_the_old_one() -> None:
    """A folder instead of a repository: nothing is left to fetch, and offline needs no volume with the old one."""
    profile = {
        "schema_version": 1, "name": "mine", "summary": "s", "served_name": "m", "model": {"id": "a/b"},
        "startup_budget_seconds": 600,
    }  # fmt: skip
    values = {"profile": "mine", "profiles": {"mine": profile}, "overrides": {"model": {"path": "/models/x"}}}
    assert not pod(values).get("initContainers")
    assert not pod({**values, "offline": True}).get("initContainers")


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


@pytest.mark.parametrize("version", helm.VERSIONS)
def test_null_takes_a_default_away(version: int) -> None:
    """As OpenShift needs it, which gives groups itself."""
    assert pod(GPU, version=version)["securityContext"]["fsGroup"] == 10001
    assert "fsGroup" not in pod({**GPU, "podSecurityContext": {"fsGroup": None}}, version=version)["securityContext"]


def test_what_is_added_stands_beside_what_is_there() -> None:
    more = {
        "extraEnv": [{"name": "NCCL_DEBUG", "value": "INFO"}],
        "extraVolumes": [{"name": "data", "emptyDir": {}}],
        "extraVolumeMounts": [{"name": "data", "mountPath": "/data"}],
        "extraContainers": [{"name": "beside", "image": "x"}],
        "initContainers": [{"name": "before", "image": "x"}],
        "extraEnvFrom": [{"configMapRef": {"name": "more"}}],
        "tolerations": [{"key": "team", "operator": "Exists"}],
        "podLabels": {"team": "llm"},
        "priorityClassName": "high",
    }
    spec = pod({**GPU, **more})
    assert env(server(spec))["NCCL_DEBUG"] == "INFO"
    assert env(server(spec))["HOME"] == "/home/radiance"
    assert mount(server(spec), "data")["mountPath"] == "/data"
    assert volume(spec, "models") == {"name": "models", "emptyDir": {}}
    assert [c["name"] for c in spec["containers"]] == ["radiance", "beside"]
    assert [c["name"] for c in spec["initContainers"]] == ["fetch", "before"]
    assert server(spec)["envFrom"] == more["extraEnvFrom"]
    assert [t["key"] for t in spec["tolerations"]] == ["nvidia.com/gpu", "team"]
    assert spec["priorityClassName"] == "high"
