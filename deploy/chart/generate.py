"""Writes what the chart has from elsewhere: values.yaml, values.schema.json, the README's table, and helm/files/.

    python deploy/chart/generate.py            writes (part of `make docs`)
    generate.files()                           the same as a mapping; tests/chart compares

Helm reads nothing outside its chart, so profiles, rules and dashboard have to be copies; being made here keeps them from drifting.
"""

from __future__ import annotations

import json
import re
import sys
import textwrap
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel
from values import ChartValues

from launcher import profiles
from launcher.arguments import SHORT
from launcher.overlay import NOT_SET
from launcher.owned import FIELDS, LAUNCHER, OWNED
from launcher.schema import NAME, PLACES
from launcher.secrets import SECRET_NAME

ROOT = Path(__file__).parents[2]
CHART = ROOT / "helm"
COPIES = {
    "files/alerts.yml": "deploy/prometheus/alerts.yml",
    "files/recording.yml": "deploy/prometheus/recording.yml",
    "files/dashboard.json": "deploy/grafana/radiance.json",
}
#: as templates/_checks.tpl has it too: RE2 has no lookahead
SECRET = SECRET_NAME.pattern.replace("(?!IZER)", "([^I]|$)")
HEAD = "# Made from deploy/chart/values.py by `make docs`; change it there. The README has the same as a table."
MARKS = ("<!-- values: begin -->\n", "<!-- values: end -->\n")


def files() -> dict[Path, str]:
    """Path -> text of every made file."""
    readme = CHART / "README.md"
    made = {CHART / to: (ROOT / source).read_text() for to, source in COPIES.items()}
    made[CHART / "files/profiles.json"] = _json(catalogue())
    made[CHART / "files/flags.json"] = _json(flags())
    made[CHART / "values.yaml"] = values_yaml()
    made[CHART / "values.schema.json"] = _json(schema())
    before, _, rest = readme.read_text().partition(MARKS[0])
    made[readme] = before + MARKS[0] + table() + MARKS[1] + rest.partition(MARKS[1])[2]
    return made


def catalogue() -> dict[str, Any]:
    """The built-in profiles as the launcher understands them: the chart reads sizes, budget and accelerators from here."""
    return {name: profiles.find(name).model_dump(mode="json", exclude_none=True) for name in profiles.entries()}


def flags() -> dict[str, str]:
    """Options of vLLM that must not stand in vllmArgs -> what to set instead. The launcher refuses them, but only in the pod."""
    found = {f"--{flag}": f"overrides.{field.split(' and ')[0]}" for flag, field in FIELDS.items()}
    found |= {f"-{short}": found[f"--{flag}"] for short, flag in SHORT.items() if f"--{flag}" in found}
    return found | {f"--{flag}": remedy.chart for flag, remedy in LAUNCHER.items()}


def schema() -> dict[str, Any]:
    """values.schema.json, in the dialect that Helm 3 and 4 both know (draft 7)."""
    made = ChartValues.model_json_schema(by_alias=True)
    made["$schema"] = "http://json-schema.org/draft-07/schema#"
    made["title"] = "Values of the Radiance chart"
    # Helm gives every subchart its parent's globals.
    made["properties"]["global"] = {"type": "object"}
    profile, parts = _profile_schema()
    made["$defs"] |= parts
    made["properties"]["profiles"] |= {"additionalProperties": profile, "propertyNames": {"pattern": NAME}}
    made["properties"]["profiles"].pop("default", None)
    # The same fields, none of them needed, without those that are a file's to say.
    fields = {key: part for key, part in profile["properties"].items() if key not in NOT_SET}
    made["properties"]["overrides"] |= {"properties": fields, "additionalProperties": False}
    names = ["", *profiles.entries()]
    none_of_mine = {"profiles": {"maxProperties": 0}, "profilesConfigMap": {"maxLength": 0}}
    made["if"] = {"properties": none_of_mine}
    made["then"] = {"properties": {"profile": {"enum": names}}}
    return dict(_plain(made))


def _profile_schema() -> tuple[dict[str, Any], dict[str, Any]]:
    """The launcher's schema of a profile, its parts under names of their own, and the rules that pydantic cannot print."""
    text = json.dumps(profiles.schema()).replace("#/$defs/", "#/$defs/Profile")
    profile = json.loads(text)
    parts = {f"Profile{name}": part for name, part in profile.pop("$defs").items()}
    profile.pop("$schema")
    owned = "|".join(re.escape(name) for name in OWNED)
    # As patterns and not as `propertyNames`: Helm 4 tells a wrong place for those.
    profile["properties"]["args"]["patternProperties"] = {"^-|_": False, rf"^({owned})(\.|$)": False}
    profile["properties"]["env"]["patternProperties"] = {f"^RADIANCE_|^({'|'.join(PLACES)})$|(?i:{SECRET})": False}
    for name in ("Model", "Drafter", "Tokenizer"):
        known = parts[f"Profile{name}"]["properties"]
        sources: list[dict[str, Any]] = [{"required": [n]} for n in ("id", "embedded", "path") if n in known]
        if "same_as_model" in known:
            sources.append({"required": ["same_as_model"], "properties": {"same_as_model": {"const": True}}})
        # None at all is right too: an override, or a profile that extends another, may change the revision alone.
        parts[f"Profile{name}"]["oneOf"] = [*sources, {"not": {"anyOf": sources}}]
    return profile, parts


def _plain(node: Any) -> Any:
    """Without pydantic's titles of fields and its defaults, which values.yaml has."""
    if isinstance(node, dict):
        return {
            name: {key: _plain(item) for key, item in value.items()}
            if name in ("properties", "$defs") and isinstance(value, dict)
            else _plain(value)
            for name, value in node.items()
            if not (name == "title" and node.get("$schema") is None) and name != "default"
        }
    return [_plain(item) for item in node] if isinstance(node, list) else node


def rows() -> list[tuple[str, Any, str]]:
    """(dotted name, default, description) of every value."""
    return list(_rows(ChartValues(), ()))


def _rows(model: BaseModel, above: tuple[str, ...]) -> list[tuple[str, Any, str]]:
    found: list[tuple[str, Any, str]] = []
    for name, field in type(model).model_fields.items():
        value, key = getattr(model, name), (*above, field.alias or name)
        if isinstance(value, BaseModel):
            found += _rows(value, key)
        else:
            found.append((".".join(key), value, field.description or ""))
    return found


def table() -> str:
    lines = ["| value | default | meaning |", "|---|---|---|"]
    for name, default, text in rows():
        shown = json.dumps(default) if isinstance(default, (dict, list, bool)) else str(default)
        lines.append(f"| `{name}` | {f'`{shown}`' if shown else ''} | {text} |")
    return "\n".join(lines) + "\n"


def values_yaml() -> str:
    return "\n".join([HEAD, *_yaml(ChartValues(), 0)]).rstrip() + "\n"


def _yaml(model: BaseModel, depth: int) -> list[str]:
    lines: list[str] = []
    for name, field in type(model).model_fields.items():
        value, key = getattr(model, name), field.alias or name
        pad = "  " * depth
        if field.description:
            lines += [f"{pad}# {line}" for line in textwrap.wrap(field.description, 110)]
        if isinstance(value, BaseModel):
            lines += [f"{pad}{key}:", *_yaml(value, depth + 1)]
        else:
            text = yaml.safe_dump({key: value}, default_flow_style=False, sort_keys=False, width=140)
            lines += [pad + line for line in text.rstrip().splitlines()]
        if depth == 0 and isinstance(value, BaseModel):
            lines.append("")
    return lines


def _json(value: Any) -> str:
    return json.dumps(value, indent=2) + "\n"


if __name__ == "__main__":
    for path, text in files().items():
        if not path.exists() or path.read_text() != text:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
            print(f"wrote {path.relative_to(ROOT)}", file=sys.stderr)
