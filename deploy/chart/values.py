"""The chart's values as a pydantic model: the one source of helm/values.yaml, helm/values.schema.json and the README's table.

Names are camelCase in YAML. "" and 0 mean "the chart decides", since Helm cannot hold a null default. Objects that Kubernetes
defines (affinity, tolerations, ...) pass through as they are; the API server checks them. Everything else is closed: an unknown
key, a wrong type or a bad profile fails at `helm template`. generate.py writes the files.
Longer than other files because it is a list, in the order of values.yaml.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel

Object = dict[str, Any]
Objects = list[dict[str, Any]]
Text = dict[str, str]
Port = Annotated[int, Field(ge=1, le=65535)]
Seconds = Annotated[int, Field(ge=0, le=86400)]
Count = Annotated[int, Field(ge=0)]
Quantity = Annotated[str, Field(pattern=r"^([0-9]+(\.[0-9]+)?(m|k|Ki|M|Mi|G|Gi|T|Ti|P|Pi)?)?$")]
#: a name of an object in the cluster, or empty
Name = Annotated[str, Field(pattern=r"^([a-z0-9]([-a-z0-9.]*[a-z0-9])?)?$", max_length=253)]
AccessMode = Literal["ReadWriteOnce", "ReadWriteMany", "ReadOnlyMany", "ReadWriteOncePod"]


class Values(BaseModel):
    model_config = ConfigDict(extra="forbid", alias_generator=to_camel, populate_by_name=True)


class Image(Values):
    repository: str = Field(default="radiance", min_length=1, description="Where your image lies, registry included.")
    tag: str = Field(default="", description="Empty: the chart's appVersion, with the variant behind it.")
    digest: str = Field(default="", pattern=r"^(sha256:[0-9a-f]{64})?$", description="`sha256:...`; wins over the tag.")
    variant: Literal["", "cuda", "rocm", "cpu"] = Field(default="", description="Empty: what the accelerator needs.")
    pull_policy: Literal["Always", "IfNotPresent", "Never"] = "IfNotPresent"
    pull_secrets: list[Name] = Field(default=[], description="Names of Secrets for the registry.")


class Dra(Values):
    enabled: bool = Field(
        default=False, description="Claim devices by Dynamic Resource Allocation (Kubernetes 1.32 or newer)."
    )
    device_class_name: Name = Field(default="", description="Empty: `gpu.nvidia.com` or `gpu.amd.com`.")
    existing_template: Name = Field(default="", description="A ResourceClaimTemplate of yours; empty: one is made.")


class Accelerator(Values):
    type: Literal["", "nvidia", "amd", "cpu"] = Field(
        default="", description="Empty: what the profile asks for, else nvidia."
    )
    count: Count = Field(default=0, description="GPUs of a pod. 0: tensor times pipeline times data parallel size.")
    resource: str = Field(
        default="",
        pattern=r"^([a-z0-9.-]+/[A-Za-z0-9._-]+)?$",
        description="Resource name, for example `nvidia.com/mig-3g.40gb`. Empty: `nvidia.com/gpu` or `amd.com/gpu`.",
    )
    tolerate: bool = Field(default=True, description="Tolerate the usual taint of GPU nodes.")
    dra: Dra = Dra()


class Ports(Values):
    http: Port = Field(default=8000, description="The API, in the pod.")
    metrics: Port = Field(default=9410, description="Metrics and probes, in the pod.")


class Service(Values):
    type: Literal["ClusterIP", "NodePort", "LoadBalancer"] = Field(default="ClusterIP", description="Of the API alone.")
    port: Port = 8000
    annotations: Text = {}


class Startup(Values):
    budget_seconds: Seconds = Field(default=0, description="0: the profile's `startup_budget_seconds`.")
    extra_seconds: Annotated[int, Field(ge=30)] = Field(
        default=60,
        description="The startup probe waits so much longer than the launcher, whose exit 124 names the phase.",
    )


class Probes(Values):
    period_seconds: Annotated[int, Field(ge=1, le=300)] = 10
    timeout_seconds: Annotated[int, Field(ge=1, le=300)] = 5
    liveness_failures: Annotated[int, Field(ge=1)] = 6
    readiness_failures: Annotated[int, Field(ge=1)] = 2


class Drain(Values):
    pre_stop_seconds: Seconds = Field(default=5, description="Endpoints and gateways learn of the stop before SIGTERM.")
    delay_seconds: Seconds = Field(
        default=5, description="Not ready, but serving, for those who ask /readyz (`--drain-delay-seconds`)."
    )
    grace_seconds: Seconds = Field(default=60, description="Running requests may end in this time (`--grace-seconds`).")
    slack_seconds: Annotated[int, Field(ge=5)] = Field(default=15, description="For vLLM's own end, before SIGKILL.")


class Shm(Values):
    size: Quantity = Field(default="", description="Limit of /dev/shm. Empty: 1Gi and another for each GPU.")


class Volume(Values):
    existing_claim: Name = Field(default="", description="A PersistentVolumeClaim of yours.")
    create: bool = Field(default=False, description="Make a claim. Neither: an emptyDir, filled anew by each pod.")
    size: Quantity = "200Gi"
    storage_class: str = Field(default="", description="Empty: the cluster's default.")
    access_modes: list[AccessMode] = Field(
        default=["ReadWriteOnce"],
        min_length=1,
        description="Also of an existing claim: more than one pod needs a ...Many mode.",
    )
    keep: bool = Field(default=True, description="`helm uninstall` leaves the claim.")
    sub_path: str = Field(default="", description="Folder inside the volume.")
    size_limit: Quantity = Field(default="", description="Limit of the emptyDir.")


class Models(Volume):
    read_only: bool = Field(
        default=False, description="Mount read-only: then nothing is fetched and the hub is not asked."
    )


class Cache(Volume):
    size: Quantity = "20Gi"


class Fetch(Values):
    enabled: bool = Field(
        default=True,
        description="`radiance fetch` as an init container. Off: the server fetches, in `startup.extraSeconds`.",
    )
    resources: Object = {}


class SecretKey(Values):
    name: Name = Field(default="", description="Name of an existing Secret.")
    key: str = Field(default="token", min_length=1)


class HuggingFace(Values):
    secret: SecretKey = SecretKey()
    token: str = Field(default="", description="The token itself; only with `allowInlineSecrets`.")


class ApiKey(Values):
    secret: SecretKey = SecretKey(key="api-key")
    value: str = Field(default="", description="The key itself; only with `allowInlineSecrets`.")


class ServiceAccount(Values):
    create: bool = True
    name: Name = Field(default="", description="Empty: the release's.")
    annotations: Text = {}


class DisruptionBudget(Values):
    enabled: bool | Literal["auto"] = Field(default="auto", description="auto: with more than one replica.")
    max_unavailable: Annotated[int, Field(ge=0)] | Annotated[str, Field(pattern=r"^[0-9]{1,3}%$")] = 1


class Egress(Values):
    enabled: bool = Field(
        default=False, description="Limit what the pods may reach: DNS, HTTPS unless offline, and `to`."
    )
    to: Objects = Field(default=[], description="More egress rules.")


class NetworkPolicy(Values):
    enabled: bool = False
    api_from: Objects = Field(default=[], description="Peers that may reach the API; empty: all.")
    metrics_from: Objects = Field(default=[], description="Peers that may reach metrics and probes; empty: all.")
    egress: Egress = Egress()


class Hpa(Values):
    metric: str = Field(
        default="vllm_num_requests_waiting",
        min_length=1,
        description="As your metrics adapter calls it (docs/kubernetes.md).",
    )


class Keda(Values):
    server_address: str = Field(
        default="", description="Prometheus, for example `http://prometheus-operated.monitoring:9090`."
    )
    polling_interval_seconds: Annotated[int, Field(ge=1)] = 15
    cooldown_seconds: Annotated[int, Field(ge=0)] = 300
    authentication: Name = Field(default="", description="A TriggerAuthentication of yours.")


class Autoscaling(Values):
    type: Literal["", "hpa", "keda"] = Field(default="", description="Empty: off, `replicas` counts.")
    min_replicas: Annotated[int, Field(ge=1)] = 1
    max_replicas: Annotated[int, Field(ge=1)] = 4
    waiting_requests_per_replica: Annotated[int, Field(ge=1)] = Field(
        default=4, description="More waiting: another replica."
    )
    behavior: Object = Field(default={}, description="HPA behavior, of either type.")
    hpa: Hpa = Hpa()
    keda: Keda = Keda()


class Monitor(Values):
    enabled: bool = False
    labels: Text = Field(default={}, description="What your Prometheus selects monitors by, often `release`.")
    interval: Annotated[str, Field(pattern=r"^[0-9]+(ms|s|m)$")] = "15s"


class Rules(Values):
    enabled: bool = False
    labels: Text = {}
    runbook_url: str = Field(
        default="", description="Base address of this repository's files; makes runbook links absolute."
    )


class Dashboard(Values):
    enabled: bool = False
    labels: Text = {"grafana_dashboard": "1"}
    annotations: Text = Field(default={}, description="For example the folder annotation of your Grafana.")


class Monitoring(Values):
    passthrough: bool = Field(
        default=True, description="vLLM's metrics on the metrics port too. Off: monitors scrape both ports."
    )
    pod_monitor: Monitor = Monitor()
    service_monitor: Monitor = Monitor()
    rules: Rules = Rules()
    dashboard: Dashboard = Dashboard()


class IngressHost(Values):
    host: str = ""
    paths: list[str] = Field(default=["/"], min_length=1)


class Ingress(Values):
    enabled: bool = False
    class_name: str = ""
    annotations: Text = {}
    hosts: list[IngressHost] = []
    tls: Objects = []


class Gateway(Values):
    enabled: bool = Field(default=False, description="Make an HTTPRoute (Gateway API v1).")
    annotations: Text = {}
    parent_refs: Objects = Field(default=[], description="The Gateways it belongs to.")
    hostnames: list[str] = []
    request_timeout: Annotated[str, Field(pattern=r"^([0-9]{1,5}(h|m|s|ms)){1,4}$")] = Field(
        default="0s", description="Of a whole request; 0s: none, as long answers need."
    )


class MultiNode(Values):
    enabled: bool = Field(
        default=False, description="A LeaderWorkerSet instead of a Deployment; a replica is a group of pods."
    )
    size: Annotated[int, Field(ge=2)] = Field(default=2, description="Pods of a group, the leader included.")
    master_port: Port = Field(default=29501, description="Where ranks of a group meet.")


class Tests(Values):
    enabled: bool = Field(default=True, description="Pods for `helm test`.")
    image: str = Field(default="", description="Any image with python3. Empty: the server's.")


class ChartValues(Values):
    enabled: bool = Field(default=True, description="false renders nothing at all, for use as a subchart.")
    name_override: Annotated[str, Field(pattern=r"^([a-z0-9]([-a-z0-9]*[a-z0-9])?)?$", max_length=40)] = ""
    fullname_override: Annotated[str, Field(pattern=r"^([a-z]([-a-z0-9]*[a-z0-9])?)?$", max_length=44)] = ""
    labels: Text = Field(default={}, description="On every object.")

    profile: str = Field(
        default="", max_length=63, description="What to serve: a built-in profile or one of `profiles`."
    )
    profiles: dict[str, Any] = Field(default={}, description="Profiles of your own, by name; same keys as the files.")
    profiles_config_map: Name = Field(
        default="",
        description="A ConfigMap with profile files instead; then give `startup.budgetSeconds` and `accelerator`.",
    )
    overrides: Object = Field(
        default={}, description="Fields of the profile to change for this release, such as `tensor_parallel_size: 2`."
    )
    launcher_args: list[str] = Field(default=[], description="More options of `radiance serve`.")
    vllm_args: list[str] = Field(default=[], description="Options of `vllm serve`, as after `--`.")

    log_format: Literal["text", "json"] = "text"

    replicas: Count = 1
    image: Image = Image()
    accelerator: Accelerator = Accelerator()
    resources: Object = Field(default={}, description="CPU and memory; the accelerator is added.")
    ports: Ports = Ports()
    service: Service = Service()
    startup: Startup = Startup()
    probes: Probes = Probes()
    drain: Drain = Drain()
    termination_grace_period_seconds: Seconds = Field(
        default=0, description="0: the sum of `drain`. Less than the sum is refused."
    )
    shm: Shm = Shm()
    models: Models = Models()
    cache: Cache = Cache()
    fetch: Fetch = Fetch()
    offline: bool = Field(default=False, description="Nothing is asked of the hub; models must lie in the volume.")

    allow_inline_secrets: bool = Field(
        default=False, description="Accept secrets as values; they end up in Helm's release data."
    )
    hugging_face: HuggingFace = HuggingFace()
    api_key: ApiKey = ApiKey()

    pod_security_context: Object = {
        "runAsNonRoot": True,
        "fsGroup": 10001,
        "fsGroupChangePolicy": "OnRootMismatch",
        "seccompProfile": {"type": "RuntimeDefault"},
    }
    security_context: Object = {
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
        "readOnlyRootFilesystem": False,
    }
    service_account: ServiceAccount = ServiceAccount()

    strategy: Object = Field(
        default={}, description="Empty: Recreate for one replica, else one pod at a time and no spare GPU."
    )
    pod_disruption_budget: DisruptionBudget = DisruptionBudget()
    network_policy: NetworkPolicy = NetworkPolicy()
    autoscaling: Autoscaling = Autoscaling()
    monitoring: Monitoring = Monitoring()
    ingress: Ingress = Ingress()
    gateway: Gateway = Gateway()
    multi_node: MultiNode = MultiNode()

    node_selector: Text = {}
    tolerations: Objects = []
    affinity: Object = {}
    topology_spread_constraints: Objects = Field(
        default=[], description="Empty: prefer different hosts. Selector filled in."
    )
    priority_class_name: str = ""
    runtime_class_name: str = ""
    scheduler_name: str = ""
    pod_labels: Text = {}
    pod_annotations: Text = {}

    extra_env: Objects = Field(default=[], description="Environment of the server.")
    extra_env_from: Objects = []
    extra_volumes: Objects = []
    extra_volume_mounts: Objects = []
    init_containers: Objects = []
    extra_containers: Objects = []
    extra_objects: Objects = Field(default=[], description="More objects; templates inside are rendered.")
    tests: Tests = Tests()
