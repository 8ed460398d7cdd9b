"""A scheduler and kubelet of one node, as much as the tests need: pods get a node, run, and their state is reported.

Without podman every pod is Ready at once, and a test pod has Succeeded: enough for `helm install --wait`. With podman pods run
for real, through `podman kube play` on the host's network. What a kubelet does itself, and podman does not, is done here:
emptyDirs are folders that everybody may write, the readiness probe is asked, preStop is run before SIGTERM, and names of Services
are in /etc/hosts, as there is no cluster DNS.
"""

from __future__ import annotations

import os
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import yaml

from tests.chart.cluster import Cluster
from tests.chart.helm import ROOT

Pod = dict[str, Any]
CONTAINERS = ROOT / "deploy" / "image" / "containers.conf"
#: an endpoint may not be a loopback address; nothing is ever sent to this one (it is for documentation)
NOBODYS = "192.0.2.1"
COMPONENT = "app.kubernetes.io/component"
#: fields of a pod that podman has no use for, or that are done here
NOT_FOR_PODMAN = ("ports", "startupProbe", "livenessProbe", "readinessProbe", "lifecycle", "terminationMessagePath")


class PodmanFailed(Exception):
    """What podman said, too."""


def podman(*arguments: str | Path, check: bool = True) -> subprocess.CompletedProcess[str]:
    settings = os.environ | {"CONTAINERS_CONF": os.environ.get("CONTAINERS_CONF", str(CONTAINERS))}
    command = ["podman", *map(str, arguments)]
    done = subprocess.run(command, env=settings, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    if check and done.returncode:
        raise PodmanFailed(f"{' '.join(command)} ended with {done.returncode}: {done.stdout}")
    return done


@dataclass
class Kubelet:
    cluster: Cluster
    folder: Path
    real: bool = False
    #: name of a pod -> what podman said of its end: exit code of its first container
    ended: dict[str, int] = field(default_factory=dict)
    #: name -> log of its containers
    logs: dict[str, str] = field(default_factory=dict)
    errors: list[str] = field(default_factory=list)
    _running: dict[str, Path] = field(default_factory=dict)

    def once(self) -> None:
        for pod in self.cluster.pods():
            where = f"/api/v1/namespaces/{pod['metadata']['namespace']}/pods/{pod['metadata']['name']}"
            if "deletionTimestamp" in pod["metadata"]:
                self._end(pod)
                self.cluster.http.request("DELETE", where, json={"gracePeriodSeconds": 0})
            elif not pod["spec"].get("nodeName"):
                target = {"apiVersion": "v1", "kind": "Node", "name": "test"}
                body = {
                    "apiVersion": "v1",
                    "kind": "Binding",
                    "metadata": {"name": pod["metadata"]["name"]},
                    "target": target,
                }
                self.cluster.http.post(f"{where}/binding", json=body).raise_for_status()
            elif pod["status"].get("phase") not in ("Succeeded", "Failed"):
                phase, ready = self._state(pod)
                if phase != pod["status"].get("phase") or ready != _is_ready(pod):
                    patch = {"status": _status(pod, phase, ready)}
                    kind = {"Content-Type": "application/strategic-merge-patch+json"}
                    self.cluster.http.patch(f"{where}/status", json=patch, headers=kind).raise_for_status()

    def _state(self, pod: Pod) -> tuple[str, bool]:
        """(phase, ready) of a pod, which is started if it was not yet."""
        name, test = pod["metadata"]["name"], pod["metadata"]["labels"][COMPONENT] == "test"
        if not self.real:
            return ("Succeeded" if test else "Running"), not test
        if name not in self._running:
            self._start(pod)
        container = f"{name}-{pod['spec']['containers'][0]['name']}"
        state = podman("inspect", container, "--format", "{{.State.Status}}").stdout.strip()
        if state in ("exited", "stopped"):
            self._note(name, container)
            return ("Succeeded" if self.ended[name] == 0 else "Failed"), False
        return "Running", not test and _answers(pod)

    def _start(self, pod: Pod) -> None:
        name = pod["metadata"]["name"]
        self._running[name] = self.folder / f"{name}.yaml"
        self._running[name].write_text(yaml.safe_dump_all([*self._maps(pod), self._for_podman(pod)], sort_keys=False))
        done = podman("kube", "play", "--network", "host", self._running[name], check=False)
        if done.returncode:
            self.errors.append(f"podman kube play {self._running[name]}: {done.stdout}")

    def _for_podman(self, pod: Pod) -> Pod:
        spec: dict[str, Any] = yaml.safe_load(yaml.safe_dump(pod["spec"]))
        for container in [*spec.get("initContainers", []), *spec["containers"]]:
            for key in NOT_FOR_PODMAN:
                container.pop(key, None)
        for volume in spec["volumes"]:
            if volume.pop("emptyDir", None) is not None:
                place = self.folder / pod["metadata"]["name"] / volume["name"]
                place.mkdir(parents=True)
                place.chmod(0o777)
                volume["hostPath"] = {"path": str(place), "type": "Directory"}
        self._hosts(pod, spec)
        spec["restartPolicy"] = "Never"
        metadata = {key: pod["metadata"][key] for key in ("name", "labels")}
        return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}

    def _hosts(self, pod: Pod, spec: dict[str, Any]) -> None:
        """A kubelet writes /etc/hosts too; with the host's network podman takes no hostAliases."""
        services = self.cluster.get(f"/api/v1/namespaces/{pod['metadata']['namespace']}/services")["items"]
        file = self.folder / f"{pod['metadata']['name']}-hosts"
        file.write_text(f"127.0.0.1 localhost {' '.join(item['metadata']['name'] for item in services)}\n")
        spec["volumes"].append({"name": "hosts", "hostPath": {"path": str(file), "type": "File"}})
        for container in [*spec.get("initContainers", []), *spec["containers"]]:
            container["volumeMounts"].append({"name": "hosts", "mountPath": "/etc/hosts", "readOnly": True})

    def _maps(self, pod: Pod) -> Iterator[Pod]:
        for volume in pod["spec"]["volumes"]:
            if name := volume.get("configMap", {}).get("name"):
                found = self.cluster.get(f"/api/v1/namespaces/{pod['metadata']['namespace']}/configmaps/{name}")
                yield {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": found["data"]}

    def _end(self, pod: Pod) -> None:
        """preStop, SIGTERM, and SIGKILL when the pod's time is up; the folders go too."""
        name = pod["metadata"]["name"]
        if (file := self._running.pop(name, None)) is None:
            return
        first = pod["spec"]["containers"][0]
        container, before = f"{name}-{first['name']}", first.get("lifecycle", {}).get("preStop")
        if before:
            podman("exec", container, *before["exec"]["command"])
        podman("stop", "--time", str(pod["spec"]["terminationGracePeriodSeconds"]), container)
        self._note(name, container)
        podman("kube", "play", "--down", file, check=False)

    def _note(self, name: str, container: str) -> None:
        """`wait` and not `inspect`, which a moment after the end may not know the code yet and says -1."""
        if name not in self.ended:
            self.ended[name] = int(podman("wait", container).stdout)
            self.logs[name] = podman("logs", container, check=False).stdout

    def down(self) -> None:
        for file in self._running.values():
            podman("kube", "play", "--down", file, check=False)


@contextmanager
def kubelet(cluster: Cluster, folder: Path, *, real: bool = False) -> Iterator[Kubelet]:
    node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "test"}}
    cluster.http.post("/api/v1/nodes", json=node)
    found, stop = Kubelet(cluster, folder, real), threading.Event()

    def loop() -> None:
        while not stop.wait(0.3):
            try:
                found.once()
            except (httpx.HTTPError, PodmanFailed, KeyError) as error:
                found.errors.append(repr(error))

    thread = threading.Thread(target=loop, name="kubelet", daemon=True)
    thread.start()
    try:
        yield found
    finally:
        stop.set()
        thread.join()
        found.down()


def _answers(pod: Pod) -> bool:
    """The readiness probe, over the host's network."""
    container = pod["spec"]["containers"][0]
    probe = container["readinessProbe"]["httpGet"]
    port = next(p["containerPort"] for p in container["ports"] if p["name"] == probe["port"])
    with suppress(httpx.HTTPError):
        return httpx.get(f"http://127.0.0.1:{port}{probe['path']}", trust_env=False, timeout=5).status_code == 200
    return False


def _is_ready(pod: Pod) -> bool:
    return any(c["type"] == "Ready" and c["status"] == "True" for c in pod["status"].get("conditions", []))


def _status(pod: Pod, phase: str, ready: bool) -> dict[str, Any]:
    now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    word = "True" if ready else "False"
    conditions = [
        {"type": kind, "status": "True" if kind in ("Initialized", "PodScheduled") else word, "lastTransitionTime": now}
        for kind in ("Initialized", "Ready", "ContainersReady", "PodScheduled")
    ]
    containers = [
        {
            "name": c["name"],
            "ready": ready,
            "restartCount": 0,
            "image": c["image"],
            "imageID": "",
            "state": {"running": {"startedAt": now}},
        }
        for c in pod["spec"]["containers"]
    ]
    if phase in ("Succeeded", "Failed"):
        for entry in containers:
            entry["state"] = {
                "terminated": {"exitCode": 0 if phase == "Succeeded" else 1, "startedAt": now, "finishedAt": now}
            }
    return {
        "phase": phase,
        "podIP": NOBODYS,
        "startTime": now,
        "conditions": conditions,
        "containerStatuses": containers,
    }
