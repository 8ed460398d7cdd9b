"""What must not render, before everything that must: Helm says no, and its message names the value and the way out.

In Helm 3 and Helm 4, whose schema validators word their answers differently.
"""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from tests.chart import helm
from tests.chart.helm import CPU, GPU

MINE = {"schema_version": 1, "name": "mine", "extends": "qwen3.8-27b-mtp"}
ONE_WRITER = {"existingClaim": "mine"}

#: values -> what the message must have, all of it
SCHEMA: dict[str, tuple[dict[str, Any], list[str]]] = {
    "a hub's cache in a profile": (
        {"profile": "mine", "profiles": {"mine": {**MINE, "env": {"HF_HOME": "/x"}}}},
        ["HF_HOME"],
    ),
    "unknown key": ({**CPU, "replica": 2}, ["replica"]),
    "unknown key inside": ({**CPU, "image": {"repo": "x"}}, ["image", "repo"]),
    "unknown key of a list": ({**CPU, "ingress": {"hosts": [{"hots": "x"}]}}, ["ingress", "hosts", "0", "hots"]),
    "wrong type": ({**CPU, "replicas": "two"}, ["replicas", "integer"]),
    "port out of range": ({**CPU, "ports": {"http": 70000}}, ["ports", "http", "65,?535"]),
    "digest": ({**CPU, "image": {"digest": "sha256:12"}}, ["image", "digest", "sha256"]),
    "accelerator": ({**GPU, "accelerator": {"type": "intel"}}, ["accelerator", "type", "nvidia", "amd", "cpu"]),
    "unknown profile": ({"profile": "qwen3.8-27b-mpt"}, ["profile", "qwen3.8-27b-mtp", "smollm2-cpu"]),
    "model name as a profile": ({"profile": "Qwen/Qwen3.8-27B"}, ["profile", "qwen3.8-27b-mtp"]),
    "access mode": ({**CPU, "models": {"accessModes": ["RWX"]}}, ["models", "accessModes", "ReadWriteMany"]),
    "override of no field": ({**CPU, "overrides": {"rerankk": 32}}, ["overrides", "rerankk"]),
    "override out of range": ({**CPU, "overrides": {"rerank": 0}}, ["overrides", "rerank"]),
    "override of the wrong kind": (
        {**CPU, "overrides": {"fast_draft": "on"}},
        ["overrides", "fast_draft", "enabled", "shadow"],
    ),
    "override of what is the file's": ({**CPU, "overrides": {"name": "x"}}, ["overrides", "name"]),
    "override by an argument of a field": (
        {**CPU, "overrides": {"args": {"max-num-seqs": 2}}},
        ["overrides", "args", "max-num-seqs"],
    ),
    "fullname": ({**CPU, "fullnameOverride": "Qwen/Qwen3"}, ["fullnameOverride"]),
    "profile: unknown key": (
        {"profile": "mine", "profiles": {"mine": {**MINE, "rerankk": 32}}},
        ["profiles", "mine", "rerankk"],
    ),
    "profile: wrong type": (
        {"profile": "mine", "profiles": {"mine": {**MINE, "tensor_parallel_size": "two"}}},
        ["profiles", "mine", "tensor_parallel_size", "integer"],
    ),
    "profile: an argument of a field": (
        {"profile": "mine", "profiles": {"mine": {**MINE, "args": {"tensor-parallel-size": 2}}}},
        ["profiles", "mine", "args", "tensor-parallel-size"],
    ),
    "profile: a secret": (
        {"profile": "mine", "profiles": {"mine": {**MINE, "env": {"hf_token": "x"}}}},
        ["profiles", "mine", "env", "hf_token"],
    ),
    "profile: two models": (
        {"profile": "mine", "profiles": {"mine": {**MINE, "model": {"id": "a/b", "path": "/m"}}}},
        ["profiles", "mine", "model"],
    ),
    "profile: nothing to serve": (
        {"profile": "mine", "profiles": {"mine": {"schema_version": 1, "name": "mine"}}},
        ["mine", "extends"],
    ),
}
RULES: dict[str, tuple[dict[str, Any], list[str]]] = {
    "no profile": ({}, ["profile is empty", "qwen3.8-27b-mtp", "smollm2-cpu"]),
    "profile of nobody": ({"profile": "his", "profiles": {"mine": MINE}}, ['profile "his"', "mine", "smollm2-cpu"]),
    "profile under another name": ({"profile": "my", "profiles": {"my": MINE}}, ["profiles.my.name", '"mine"', '"my"']),
    "profile extends nothing": (
        {"profile": "mine", "profiles": {"mine": {**MINE, "extends": "nothing"}}},
        ["profiles.mine.extends", '"nothing"'],
    ),
    "profile extends in a ring": (
        {
            "profile": "mine",
            "profiles": {
                "mine": {**MINE, "extends": "yours"},
                "yours": {**MINE, "name": "yours", "extends": "mine"},
            },
        },
        ["ring", "mine -> yours -> mine"],
    ),
    "profiles twice": (
        {"profile": "mine", "profiles": {"mine": MINE}, "profilesConfigMap": "more"},
        ["profilesConfigMap", "more"],
    ),
    "unread profile": (
        {"profile": "theirs", "profilesConfigMap": "more"},
        ["startup.budgetSeconds", "accelerator.type", "theirs", "more"],
    ),
    "grace too short": (
        {**CPU, "terminationGracePeriodSeconds": 30},
        ["terminationGracePeriodSeconds is 30", "85", "graceSeconds 60", "preStopSeconds 5", "delaySeconds 5"],
    ),
    "grace too short for a long drain": (
        {**CPU, "drain": {"graceSeconds": 600}, "terminationGracePeriodSeconds": 600},
        ["terminationGracePeriodSeconds is 600", "625"],
    ),
    "replicas on one writer's volume": (
        {**GPU, "replicas": 2, "models": {"create": True}},
        ["models.accessModes", "ReadWriteOnce", "replicas 2", "ReadWriteMany"],
    ),
    "replicas on one writer's cache": ({**GPU, "replicas": 2, "cache": ONE_WRITER}, ["cache.accessModes", "replicas 2"]),
    "autoscaling on one writer's volume": (
        {**GPU, "autoscaling": {"type": "hpa"}, "models": ONE_WRITER},
        ["models.accessModes", "autoscaling.maxReplicas 4"],
    ),
    "a group of pods on one writer's volume": (
        {**GPU, "overrides": {"tensor_parallel_size": 2}, "multiNode": {"enabled": True}, "models": ONE_WRITER},
        ["models.accessModes", "multiNode.size 2"],
    ),
    "rolling on one writer's volume": (
        {**GPU, "models": {"create": True}, "strategy": {"type": "RollingUpdate"}},
        ["strategy.type is RollingUpdate", "ReadWriteOnce"],
    ),
    "read-only volume that is written": (
        {**GPU, "models": {"existingClaim": "m", "accessModes": ["ReadOnlyMany"]}},
        ["ReadOnlyMany", "models.readOnly"],
    ),
    "two volumes": ({**GPU, "models": {"create": True, "existingClaim": "mine"}}, ["models.create", "mine"]),
    "empty volume that cannot be filled": ({**GPU, "models": {"readOnly": True}}, ["models.readOnly", "existingClaim"]),
    "offline without models": ({**GPU, "offline": True}, ["offline", "models.existingClaim"]),
    "ports that are one": ({**CPU, "ports": {"http": 9000, "metrics": 9000}}, ["ports.http", "ports.metrics", "9000"]),
    "launcher options of values": ({**CPU, "launcherArgs": ["--metrics-port=1"]}, ["--metrics-port", "ports.metrics"]),
    "parallel size as an argument": (
        {**GPU, "vllmArgs": ["--enforce-eager", "--tensor_parallel_size=2"]},
        ["vllmArgs", "--tensor_parallel_size=2", "overrides.tensor_parallel_size"],
    ),
    "parallel size in short": ({**GPU, "vllmArgs": ["-tp", "2"]}, ["vllmArgs: -tp", "overrides.tensor_parallel_size"]),
    "model name as an argument": ({**GPU, "vllmArgs": ["--served-model-name", "x"]}, ["overrides.served_name"]),
    "drafts as an argument": ({**GPU, "vllmArgs": ["--speculative-config={}"]}, ["overrides.speculative"]),
    "port as an argument": ({**GPU, "vllmArgs": ["--port", "1"]}, ["vllmArgs: --port", "ports.http"]),
    "the beginning of a name": ({**GPU, "vllmArgs": ["--tensor-par", "2"]}, ["overrides.tensor_parallel_size"]),
    "the beginning of an address": ({**GPU, "vllmArgs": ["--hos", "::1"]}, ["vllmArgs: --hos", "all addresses"]),
    "TLS that the probes do not speak": ({**GPU, "vllmArgs": ["--ssl-keyfile=/k"]}, ["vllmArgs: --ssl-keyfile", "ingress"]),
    "a file of options": ({**GPU, "vllmArgs": ["--config", "/c"]}, ["vllmArgs: --config", "profiles.NAME.args"]),
    "the beginning of a secret": ({**GPU, "vllmArgs": ["--api-k=x"]}, ["--api-k", "apiKey.secret"]),
    "launcher's --set": ({**GPU, "launcherArgs": ["--set", "rerank=64"]}, ["launcherArgs: --set", "overrides"]),
    "a fall-back of one node of a group": (
        {**GPU, "overrides": {"tensor_parallel_size": 2}, "multiNode": {"enabled": True}, "launcherArgs": ["--fallback-after-seconds=600"]},
        ["--fallback-after-seconds=600", "multiNode.enabled", "overrides.fast_draft"],
    ),
    "GPU model on a CPU": ({**GPU, "accelerator": {"type": "cpu"}}, ['"cpu"', "qwen3.8-27b-mtp", "nvidia, amd"]),
    "CPU model on a GPU": ({**CPU, "accelerator": {"type": "amd"}}, ['"amd"', "smollm2-cpu", "cpu"]),
    "fewer GPUs than ranks": (
        {**GPU, "overrides": {"tensor_parallel_size": 4}, "accelerator": {"count": 2}},
        ["accelerator.count is 2", "4"],
    ),
    "ranks that nodes do not share": (
        {**GPU, "overrides": {"tensor_parallel_size": 3}, "multiNode": {"enabled": True}},
        ["multiNode.size is 2", "3"],
    ),
    "DRA before there was any": ({**GPU, "accelerator": {"dra": {"enabled": True}}}, ["1.32", "v1.31"]),
    "token in the values": ({**GPU, "huggingFace": {"token": "hf_x"}}, ["huggingFace.token", "huggingFace.secret", "allowInlineSecrets"]),
    "key in the values": ({**GPU, "apiKey": {"value": "k"}}, ["apiKey.value", "apiKey.secret"]),
    "token twice": (
        {**GPU, "allowInlineSecrets": True, "huggingFace": {"token": "hf_x", "secret": {"name": "hub"}}},
        ["huggingFace.token", "huggingFace.secret.name", "hub"],
    ),
    "secret in the environment": ({**GPU, "extraEnv": [{"name": "AWS_SECRET_ACCESS_KEY", "value": "x"}]}, ["AWS_SECRET_ACCESS_KEY"]),
    "secret in the arguments": ({**GPU, "vllmArgs": ["--api-key=hunter2"]}, ["--api-key", "apiKey.secret"]),
    "environment of the chart": ({**GPU, "extraEnv": [{"name": "HF_HOME", "value": "/x"}]}, ["HF_HOME"]),
    "autoscaling upside down": ({**GPU, "autoscaling": {"type": "hpa", "minReplicas": 9}}, ["minReplicas is 9", "4"]),
    "KEDA without Prometheus": ({**GPU, "autoscaling": {"type": "keda"}}, ["autoscaling.keda.serverAddress"]),
    "ingress to nowhere": ({**GPU, "ingress": {"enabled": True}}, ["ingress.hosts"]),
    "route of no gateway": ({**GPU, "gateway": {"enabled": True}}, ["gateway.parentRefs"]),
    "series twice": (
        {**GPU, "monitoring": {"podMonitor": {"enabled": True}, "serviceMonitor": {"enabled": True}}},
        ["podMonitor", "serviceMonitor"],
    ),
    "a Service called vllm": ({**GPU, "fullnameOverride": "vllm"}, ["vllm", "VLLM_PORT", "fullnameOverride"]),
    "labels of the chart": ({**GPU, "podLabels": {"app.kubernetes.io/name": "x"}}, ["podLabels", "app.kubernetes.io/name"]),
}  # fmt: skip
each_version = pytest.mark.parametrize("version", helm.VERSIONS)


@pytest.mark.parametrize(("values", "words"), SCHEMA.values(), ids=SCHEMA)
@each_version
def test_the_schema_refuses(values: dict[str, Any], words: list[str], version: int) -> None:
    with pytest.raises(helm.Refused, match="don't meet the specifications of the schema") as refused:
        helm.template(values, version=version)
    for word in words:
        refused.match(word)


@pytest.mark.parametrize(("values", "words"), RULES.values(), ids=RULES)
@each_version
def test_a_rule_refuses(values: dict[str, Any], words: list[str], version: int) -> None:
    with pytest.raises(helm.Refused) as refused:
        helm.template(values, version=version, kube="1.31" if "dra" in str(values) else "1.37")
    text = str(refused.value)
    assert "don't meet the specifications" not in text, "the schema has it already"
    assert [word for word in words if word not in text] == [], text
    assert "hunter2" not in text


@each_version
def test_all_broken_rules_are_told_at_once(version: int) -> None:
    values = {**GPU, "offline": True, "replicas": 2, "cache": {"create": True}, "terminationGracePeriodSeconds": 1}
    with pytest.raises(helm.Refused) as refused:
        helm.template(values, version=version)
    assert str(refused.value).count("\n  * ") == 3


@each_version
def test_without_the_schema_the_rules_still_hold(version: int) -> None:
    with pytest.raises(helm.Refused, match='profile "nope" is unknown'):
        helm.template({"profile": "nope"}, version=version, options=["--skip-schema-validation"])


@each_version
def test_set_on_the_command_line_is_checked_too(version: int) -> None:
    with pytest.raises(helm.Refused, match="profil"):
        helm.helm("template", "demo", helm.CHART, "--set", "profil=smollm2-cpu", version=version)


def test_nothing_refuses_what_is_right() -> None:
    """Each case above is one step from values that render; else a case could pass for another's reason."""
    right: list[dict[str, Any]] = [
        CPU,
        GPU,
        {"profile": "mine", "profiles": {"mine": MINE}},
        {
            "profile": "theirs",
            "profilesConfigMap": "more",
            "startup": {"budgetSeconds": 60},
            "accelerator": {"type": "cpu"},
        },
        {**CPU, "terminationGracePeriodSeconds": 85},
        {**GPU, "replicas": 2, "models": {"existingClaim": "m", "accessModes": ["ReadWriteMany"]}},
        {**GPU, "models": {"existingClaim": "m", "accessModes": ["ReadOnlyMany"], "readOnly": True}, "replicas": 2},
        {**GPU, "overrides": {"tensor_parallel_size": 4}, "accelerator": {"count": 4}},
        {**GPU, "overrides": {"tensor_parallel_size": 2}, "multiNode": {"enabled": True}},
        {**GPU, "accelerator": {"dra": {"enabled": True}}},
        {**GPU, "allowInlineSecrets": True, "huggingFace": {"token": "hf_x"}, "apiKey": {"value": "k"}},
        {**GPU, "extraEnv": [{"name": "TOKENIZERS_PARALLELISM", "value": "false"}]},
        {**GPU, "autoscaling": {"type": "hpa"}},
        {**GPU, "fullnameOverride": "vllm-a"},
        {**GPU, "vllmArgs": ["--enforce-eager", "--seed", "7", "--scheduling-policy=priority"]},
        {**GPU, "launcherArgs": ["--on-wedge", "report"], "overrides": {"model": {"revision": "abc"}}},
        {**GPU, "launcherArgs": ["--fallback-after-seconds", "600"]},
        {**CPU, "global": {"of": "a parent chart"}},
    ]
    for values in right:
        assert yaml.safe_load_all(helm.template(values))
