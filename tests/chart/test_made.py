"""Files of the chart that are made: as the code makes them, complete, and as strict as they claim."""

from __future__ import annotations

import json
from typing import Any

import generate
import jsonschema
import pytest
import yaml
from values import ChartValues

from tests.chart import helm

SCHEMA: dict[str, Any] = json.loads((helm.CHART / "values.schema.json").read_text())
#: Kubernetes' own objects, and maps of texts: their keys are not ours to know
OPEN = {
    "resources", "strategy", "affinity", "podSecurityContext", "securityContext", "labels", "podLabels", "podAnnotations",
    "annotations", "nodeSelector", "global", "profiles", "env", "args", "options", "behavior", "tls", "parentRefs",
    "tolerations", "topologySpreadConstraints", "apiFrom", "metricsFrom", "to",
    "extraEnv", "extraEnvFrom", "extraVolumes", "extraVolumeMounts", "initContainers", "extraContainers", "extraObjects",
}  # fmt: skip


@pytest.mark.parametrize(("path", "text"), generate.files().items(), ids=lambda v: v.name if hasattr(v, "name") else "")
def test_a_made_file_is_as_the_code_makes_it(path: Any, text: str) -> None:
    assert path.read_text() == text, "run `make docs`"


def test_the_checks_know_the_same_names_of_secrets_as_the_launcher() -> None:
    assert f'"(?i){generate.SECRET}"' in (helm.CHART / "templates/_checks.tpl").read_text()


def test_the_manual_computes_the_grace_of_a_pod_as_the_chart_does() -> None:
    text = (helm.ROOT / "docs/operations.md").read_text()
    slack = ChartValues().drain.slack_seconds
    assert f"terminationGracePeriodSeconds >= preStop + drain-delay-seconds + grace-seconds + {slack}\n" in text


def test_values_yaml_says_what_the_model_says() -> None:
    assert yaml.safe_load((helm.CHART / "values.yaml").read_text()) == ChartValues().model_dump(
        mode="json", by_alias=True
    )


def test_every_value_has_a_row_in_the_readme() -> None:
    text = (helm.CHART / "README.md").read_text()
    for name, _, _ in generate.rows():
        assert f"\n| `{name}` |" in text


def _objects(node: Any, name: str) -> list[tuple[str, dict[str, Any]]]:
    found: list[tuple[str, dict[str, Any]]] = []
    if isinstance(node, list):
        return [hit for item in node for hit in _objects(item, name)]
    if not isinstance(node, dict):
        return []
    if node.get("type") == "object":
        found.append((name, node))
    for key, value in node.items():
        if key in ("properties", "$defs"):
            found += [hit for inner, item in value.items() for hit in _objects(item, inner)]
        elif key not in ("if", "then", "not", "propertyNames"):
            found += _objects(value, name)
    return found


def test_no_object_of_ours_takes_a_key_it_does_not_know() -> None:
    objects = _objects(SCHEMA, "the root")
    assert len(objects) > 60
    loose = {name for name, node in objects if node.get("additionalProperties") is not False}
    assert loose - OPEN == set()


def test_every_value_is_used_by_a_template() -> None:
    """A value that nothing reads is a promise that nobody keeps."""
    templates = "".join(path.read_text() for path in helm.CHART.glob("templates/*"))
    for name, _, _ in generate.rows():
        assert name.rpartition(".")[2] in templates, name


def test_the_schema_is_valid_itself() -> None:
    jsonschema.Draft7Validator.check_schema(SCHEMA)


def test_the_catalogue_fits_the_schema_that_profiles_must_fit() -> None:
    """The same model twice: what the launcher ships must pass what the chart asks of users."""
    validator = jsonschema.Draft7Validator(SCHEMA)
    for name, profile in generate.catalogue().items():
        values = {"profile": name, "profiles": {name: profile}}
        assert [error.message for error in validator.iter_errors(values)] == []
