"""A Kubernetes API server with its controllers on loopback, for as long as a test: etcd, kube-apiserver, kube-controller-manager.

The server is 1.20 (deploy/chart/apiserver.sh says why). It has no scheduler and no kubelet: kubelet.py plays both.
"""

from __future__ import annotations

import secrets
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import yaml

from tests.chart import helm
from tests.processes import free_port, running, until


@dataclass
class Cluster:
    kubeconfig: Path
    http: httpx.Client = field(repr=False)

    def get(self, path: str) -> dict[str, Any]:
        return dict(self.http.get(path).raise_for_status().json())

    def pods(self, namespace: str = "") -> list[dict[str, Any]]:
        return list(self.get(f"/api/v1/namespaces/{namespace}/pods" if namespace else "/api/v1/pods")["items"])

    def helm(self, *arguments: str | Path, version: int) -> str:
        return helm.helm(*arguments, version=version, env={"KUBECONFIG": str(self.kubeconfig)})


def binaries() -> Path:
    """The folder with the API server, built if it was not yet: that takes 10 to 15 minutes."""
    script = helm.ROOT / "deploy" / "chart" / "apiserver.sh"
    return Path(subprocess.run([script], stdout=subprocess.PIPE, text=True, check=True).stdout.strip())


@contextmanager
def cluster(folder: Path) -> Iterator[Cluster]:
    """Until the block ends; logs and data are in `folder`."""
    programs, token = binaries(), secrets.token_hex(16)
    client, peer, port = free_port(), free_port(), free_port()
    (folder / "tokens.csv").write_text(f"{token},admin,admin,system:masters\n")
    subprocess.run(["openssl", "genrsa", "-out", folder / "sa.key", "2048"], check=True, capture_output=True)
    (folder / "kubeconfig").write_text(yaml.safe_dump(_kubeconfig(port, token)))
    etcd: list[str | Path] = [
        "etcd", f"--data-dir={folder}/etcd", f"--initial-cluster=default=http://127.0.0.1:{peer}",
        *(f"--{name}=http://127.0.0.1:{client}" for name in ("listen-client-urls", "advertise-client-urls")),
        *(f"--{name}=http://127.0.0.1:{peer}" for name in ("listen-peer-urls", "initial-advertise-peer-urls")),
    ]  # fmt: skip
    server: list[str | Path] = [
        programs / "kube-apiserver", f"--etcd-servers=http://127.0.0.1:{client}", "--bind-address=127.0.0.1",
        f"--secure-port={port}", "--insecure-port=0", f"--cert-dir={folder}/certs", f"--token-auth-file={folder}/tokens.csv",
        "--authorization-mode=RBAC", "--service-account-issuer=https://kubernetes.default.svc",
        f"--service-account-signing-key-file={folder}/sa.key", f"--service-account-key-file={folder}/sa.key",
        "--service-cluster-ip-range=10.0.0.0/24", "--endpoint-reconciler-type=none",
        "--disable-admission-plugins=ServiceAccount", "--allow-privileged=true",
    ]  # fmt: skip
    manager: list[str | Path] = [
        programs / "kube-controller-manager", f"--kubeconfig={folder}/kubeconfig", f"--cert-dir={folder}/certs",
        f"--service-account-private-key-file={folder}/sa.key", "--controllers=*,-nodelifecycle,-ttl",
        "--leader-elect=false", "--bind-address=127.0.0.1", "--port=0", f"--secure-port={free_port()}",
    ]  # fmt: skip
    with ExitStack() as stack:
        stack.enter_context(running(etcd, folder / "etcd.log"))
        stack.enter_context(running(server, folder / "apiserver.log"))
        # The server made its certificate a moment ago; what is tested is the chart, not trust in loopback.
        headers = {"Authorization": f"Bearer {token}"}
        http = httpx.Client(
            base_url=f"https://127.0.0.1:{port}", headers=headers, verify=False, trust_env=False, timeout=30
        )
        stack.enter_context(http)
        until(lambda: _ready(http), f"the API server is ready; see {folder}/apiserver.log", patience=120)
        stack.enter_context(running(manager, folder / "controller-manager.log"))
        yield Cluster(folder / "kubeconfig", http)


def _ready(http: httpx.Client) -> bool:
    try:
        return http.get("/readyz").status_code == 200
    except httpx.HTTPError:
        return False


def _kubeconfig(port: int, token: str) -> dict[str, Any]:
    server = {"server": f"https://127.0.0.1:{port}", "insecure-skip-tls-verify": True}
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "test", "cluster": server}],
        "users": [{"name": "admin", "user": {"token": token}}],
        "contexts": [{"name": "test", "context": {"cluster": "test", "user": "admin"}}],
        "current-context": "test",
    }
