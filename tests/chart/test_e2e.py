"""The chart on a real API server, with real controllers; then its pod with the real image, a real vLLM, and `helm test`.

Slow, so not in `make chart`: `make chart-e2e` builds the API server first (once, 10 to 15 minutes) and needs podman and the image
localhost/radiance:cpu (`make image`).
"""

from __future__ import annotations

import json
import os
import shutil
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.chart import helm
from tests.chart.cluster import Cluster, cluster
from tests.chart.kubelet import Kubelet, kubelet, podman
from tests.processes import free_port, until

pytestmark = pytest.mark.chart_e2e
SMOKE = helm.CHART / "ci" / "cpu-smoke-values.yaml"
IMAGE = os.environ.get("CHART_IMAGE", "localhost/radiance:cpu")
#: a start on a machine that does other work too
START = 600


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with cluster(tmp_path_factory.mktemp("cluster")) as found:
        yield found


def server(api: Cluster, namespace: str) -> list[dict[str, Any]]:
    return [p for p in api.pods(namespace) if p["metadata"]["labels"]["app.kubernetes.io/component"] == "server"]


@pytest.mark.parametrize("version", helm.VERSIONS)
def test_install_upgrade_rollback_uninstall(api: Cluster, tmp_path: Path, version: int) -> None:
    namespace = f"life-{version}"
    in_it = ("--namespace", namespace)

    def grace() -> set[int]:
        return {pod["spec"]["terminationGracePeriodSeconds"] for pod in server(api, namespace)}

    with kubelet(api, tmp_path) as node:
        api.helm(
            "install",
            "demo",
            helm.CHART,
            *in_it,
            "--create-namespace",
            "-f",
            SMOKE,
            "--wait",
            "--timeout=180s",
            version=version,
        )
        assert grace() == {85}
        values = ("-f", SMOKE, "--set", "drain.graceSeconds=120")
        api.helm("upgrade", "demo", helm.CHART, *in_it, *values, "--wait", "--timeout=180s", version=version)
        until(lambda: grace() == {145}, "only the new pod is left")
        api.helm("rollback", "demo", "1", *in_it, "--wait", "--timeout=180s", version=version)
        until(lambda: grace() == {85}, "only a pod as before is left")
        said = api.helm("history", "demo", *in_it, "-o", "json", version=version)
        assert [entry["status"] for entry in json.loads(said)] == ["superseded", "superseded", "deployed"]
        api.helm("test", "demo", *in_it, "--timeout=60s", version=version)
        with pytest.raises(helm.Refused, match="terminationGracePeriodSeconds is 1"):
            api.helm(
                "upgrade",
                "demo",
                helm.CHART,
                *in_it,
                "-f",
                SMOKE,
                "--set",
                "terminationGracePeriodSeconds=1",
                version=version,
            )
        api.helm("uninstall", "demo", *in_it, "--wait", "--timeout=180s", version=version)
        until(lambda: not api.pods(namespace), "no pod is left")
    assert node.errors == []
    for kind in ("services", "configmaps", "serviceaccounts"):
        items = api.get(f"/api/v1/namespaces/{namespace}/{kind}")["items"]
        assert [
            i["metadata"]["name"] for i in items if i["metadata"]["name"] not in ("default", "kube-root-ca.crt")
        ] == []


def behind(api: Cluster, namespace: str, service: str) -> list[str]:
    """Names of the ready pods that a Service leads to."""
    subsets = api.get(f"/api/v1/namespaces/{namespace}/endpoints/{service}").get("subsets", [])
    return [address["targetRef"]["name"] for subset in subsets for address in subset.get("addresses", [])]


@pytest.mark.parametrize("version", helm.VERSIONS)
def test_two_releases_live_in_one_namespace(api: Cluster, tmp_path: Path, version: int) -> None:
    namespace = f"two-{version}"
    with kubelet(api, tmp_path) as node:
        for name in ("one", "two"):
            command = ("install", name, helm.CHART, "--namespace", namespace, "--create-namespace")
            api.helm(*command, "-f", SMOKE, "--wait", "--timeout=180s", version=version)
        for name in ("one", "two"):
            for service in (f"{name}-radiance", f"{name}-radiance-metrics"):
                [pod] = until(partial(behind, api, namespace, service), f"{service} has a pod")
                assert pod.startswith(f"{name}-radiance-")
        for name in ("one", "two"):
            api.helm("uninstall", name, "--namespace", namespace, version=version)
        until(lambda: not api.pods(namespace), "no pod is left")
    assert node.errors == []


@pytest.fixture
def image() -> str:
    if shutil.which("podman") is None or podman("image", "exists", IMAGE, check=False).returncode:
        text = f"there is no podman with the image {IMAGE}: run `make image`"
        if os.environ.get("CI", "").lower() == "true":
            pytest.fail(text)
        pytest.skip(text)
    return IMAGE


def test_a_real_server_is_installed_tested_and_drained(api: Cluster, tmp_path: Path, image: str) -> None:
    """`helm install --wait` waits for a real vLLM; a stream that runs while the release is uninstalled loses nothing."""
    http, metrics, in_it = free_port(), free_port(), ("--namespace", "real")
    repository, _, tag = image.rpartition(":")
    settings = {
        "image.repository": repository, "image.tag": tag, "image.pullPolicy": "Never", "ports.http": http, "ports.metrics": metrics,
        # No kube-proxy here: a Service's port must be the pod's.
        "service.port": http, "drain.preStopSeconds": 2, "securityContext.readOnlyRootFilesystem": "true",
    }  # fmt: skip
    chosen = [part for name, value in settings.items() for part in ("--set", f"{name}={value}")]
    with kubelet(api, tmp_path, real=True) as node:
        arguments = ("install", "demo", helm.CHART, *in_it, "--create-namespace", "-f", SMOKE, *chosen)
        _try(api, node, *arguments, "--wait", f"--timeout={START}s")
        [pod] = server(api, "real")
        name = pod["metadata"]["name"]
        said = podman("exec", f"{name}-radiance", "id", "-u").stdout.strip()
        assert said == "10001"
        assert podman("exec", f"{name}-radiance", "touch", "/x", check=False).returncode, (
            "the root file system is read-only"
        )
        _try(api, node, "test", "demo", *in_it, "--timeout=300s")
        tests = {pod: code for pod, code in node.ended.items() if "-test-" in pod}
        assert tests == {f"demo-radiance-test-{check}": 0 for check in ("models", "completion", "metrics", "head")}
        assert "completion: 'The capital of France is'" in node.logs["demo-radiance-test-completion"]
        assert "tokens per draft over" in node.logs["demo-radiance-test-head"]
        _drain(api, node, http, name, in_it)
    assert node.errors == []


def _try(api: Cluster, node: Kubelet, *arguments: str | Path) -> None:
    try:
        api.helm(*arguments, version=4)
    except helm.Refused as refused:
        pytest.fail(f"{refused}\n{node.errors}\n{node.logs}\n{_logs()}")


def _drain(api: Cluster, node: Kubelet, port: int, name: str, in_it: tuple[str, str]) -> None:
    body = {
        "model": "smollm2-135m-instruct",
        "prompt": "Once upon a time",
        "max_tokens": 400,
        "ignore_eos": True,
        "stream": True,
    }
    lines: list[str] = []
    begun = threading.Event()

    def read() -> None:
        url = f"http://127.0.0.1:{port}/v1/completions"
        with httpx.stream("POST", url, json=body | {"temperature": 0}, trust_env=False, timeout=300) as answer:
            for line in answer.iter_lines():
                lines.append(line)
                begun.set()

    reader = threading.Thread(target=read)
    reader.start()
    assert begun.wait(120)
    api.helm("uninstall", "demo", *in_it, version=4)
    until(lambda: name in node.ended, "the server has ended", patience=180)
    reader.join(60)
    assert lines[-2:] == ["data: [DONE]", ""] or lines[-1] == "data: [DONE]", lines[-3:]
    assert sum(line.startswith("data: {") for line in lines) > 50
    assert node.ended[name] == 0, node.logs[name][-3000:]


def _logs() -> str:
    names = podman("ps", "-a", "--format", "{{.Names}}", check=False).stdout.split()
    return "\n".join(
        podman("logs", "--tail", "40", name, check=False).stdout for name in names if "demo-radiance" in name
    )
