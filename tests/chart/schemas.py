"""Is an object what Kubernetes, or the operator it is for, takes? Strictly: an unknown field is an error.

Kubernetes' own kinds: the schemas of every release, from the package kubernetes-validate. PodMonitor, ServiceMonitor,
PrometheusRule and ScaledObject: models made from the operators' own definitions (packages cloudcoil.models.*). HTTPRoute and
LeaderWorkerSet come in no package of the Python index: the schemas at the end are ours, of the fields that the chart uses, after
the projects' published types, and a pod template inside is checked as Kubernetes checks it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from functools import cache, partial
from typing import Any

import jsonschema

Object = dict[str, Any]
OLDEST = 28


@cache
def releases() -> list[str]:
    """From 1.28 to the newest that the package has."""
    import kubernetes_validate

    newest = kubernetes_validate.latest_version()
    return [f"1.{minor}" for minor in range(OLDEST, int(newest.split(".")[1]) + 1)]


def check(item: Object, release: str) -> None:
    """Raises jsonschema.ValidationError or kubernetes_validate's own."""
    _check(json.dumps(item, sort_keys=True), release)


@cache
def _check(text: str, release: str) -> None:
    """Cached: most objects are the same in most scenarios."""
    item = json.loads(text)
    kind = item["kind"]
    if kind in CUSTOM:
        jsonschema.Draft7Validator(CUSTOM[kind]()).validate(item)
        for template in _templates(item):
            check({"apiVersion": "v1", "kind": "PodTemplate", "template": template}, release)
        return
    import kubernetes_validate

    kubernetes_validate.validate(item, release, strict=True)


def _templates(item: Object) -> Iterator[Object]:
    if item["kind"] == "LeaderWorkerSet":
        group = item["spec"]["leaderWorkerTemplate"]
        yield from (group["leaderTemplate"], group["workerTemplate"])


def closed(node: Any) -> Any:
    """The schema with every object that lists its properties closed for others."""
    if isinstance(node, list):
        return [closed(item) for item in node]
    if not isinstance(node, dict):
        return node
    made = {key: closed(value) for key, value in node.items()}
    if isinstance(made.get("properties"), dict) and made.get("type") == "object":
        made.setdefault("additionalProperties", False)
    return made


@cache
def _monitoring(kind: str) -> Object:
    from cloudcoil.models.prometheus_operator import v1

    return dict(closed(getattr(v1, kind).model_json_schema(by_alias=True)))


@cache
def _keda(kind: str) -> Object:
    from cloudcoil.models.keda import v1alpha1

    return dict(closed(getattr(v1alpha1, kind).model_json_schema(by_alias=True)))


TEXT: Object = {"type": "string", "minLength": 1}
COUNT: Object = {"type": "integer", "minimum": 0}
PORT: Object = {"type": "integer", "minimum": 1, "maximum": 65535}
LABELS: Object = {"type": "object", "additionalProperties": {"type": "string"}}
DURATION: Object = {"type": "string", "pattern": r"^([0-9]{1,5}(h|m|s|ms)){1,4}$"}


def _object(required: dict[str, Any], **optional: Any) -> Object:
    return {
        "type": "object",
        "properties": {**required, **optional},
        "required": list(required),
        "additionalProperties": False,
    }


def _list(items: Object) -> Object:
    return {"type": "array", "items": items, "minItems": 1}


def _kind(version: str, kind: str, spec: Object) -> Object:
    metadata = _object({"name": TEXT}, labels=LABELS, annotations=LABELS)
    return _object({"apiVersion": {"const": version}, "kind": {"const": kind}, "metadata": metadata, "spec": spec})


ROUTE = _kind(
    "gateway.networking.k8s.io/v1",
    "HTTPRoute",
    _object(
        {
            "parentRefs": _list(
                _object({"name": TEXT}, namespace=TEXT, sectionName=TEXT, port=PORT, group=TEXT, kind=TEXT)
            ),
            "rules": _list(
                _object(
                    {"backendRefs": _list(_object({"name": TEXT, "port": PORT}))},
                    matches=_list(
                        _object(
                            {
                                "path": _object(
                                    {"type": {"enum": ["Exact", "PathPrefix", "RegularExpression"]}, "value": TEXT}
                                )
                            }
                        )
                    ),
                    timeouts=_object({}, request=DURATION, backendRequest=DURATION),
                )
            ),
        },
        hostnames=_list(
            {"type": "string", "pattern": r"^(\*\.)?[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$"}
        ),
    ),
)
GROUP = _kind(
    "leaderworkerset.x-k8s.io/v1",
    "LeaderWorkerSet",
    _object(
        {
            "leaderWorkerTemplate": _object(
                {"workerTemplate": {"type": "object"}},
                leaderTemplate={"type": "object"},
                size={"type": "integer", "minimum": 1},
                restartPolicy={"enum": ["RecreateGroupOnPodRestart", "RecreateGroupAfterStart", "None"]},
            )
        },
        replicas=COUNT,
        startupPolicy={"enum": ["LeaderCreated", "LeaderReady"]},
        rolloutStrategy=_object(
            {"type": {"const": "RollingUpdate"}},
            rollingUpdateConfiguration=_object({}, maxSurge=COUNT, maxUnavailable=COUNT, partition=COUNT),
        ),
    ),
)
CUSTOM: dict[str, Callable[[], Object]] = {
    **{kind: partial(_monitoring, kind) for kind in ("PodMonitor", "ServiceMonitor", "PrometheusRule")},
    "ScaledObject": partial(_keda, "ScaledObject"),
    "HTTPRoute": lambda: ROUTE,
    "LeaderWorkerSet": lambda: GROUP,
}
