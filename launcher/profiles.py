"""Profiles: one YAML file each. The built-in ones are data in catalog/; schema.py says what may stand in them.

A folder given with --profiles-dir is laid over the catalogue: a file there hides the built-in profile of the same name, or
changes it key by key when it says `extends: that name`.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import UnionType
from typing import Any, Union, cast, get_args, get_origin

from pydantic import BaseModel, ValidationError

from launcher.errors import LauncherError, ProfileError, SettingsConflict, UnknownProfile, UsageProblem, nearest
from launcher.layers import Layer, Merged, merge
from launcher.schema import FastDraft, Profile
from launcher.sections import Architecture, Speculative
from launcher.yamlfile import load

__all__ = ["FastDraft", "Profile", "entries", "find", "read", "schema", "stack"]

CATALOG = Path(__file__).parent / "catalog"
BUILT_IN, USER, ENVIRONMENT, COMMAND_LINE = "built-in", "user file", "environment", "command line"
#: of a profile's own file: never taken over by one that extends it. What was verified was the other one.
OWN = {"extends", "verified"}
WRONG = {ENVIRONMENT: SettingsConflict, COMMAND_LINE: UsageProblem}
#: keys without which a file is no profile of its own
REQUIRED = ("summary", "model", "served_name")


@dataclass(frozen=True)
class Entry:
    """Where a profile of the catalogue lies."""

    name: str
    path: Path
    built_in: bool


def entries(extra: Path | None = None) -> dict[str, Entry]:
    """All profiles by name; `extra` lies over the built-in ones. Only file names are looked at."""
    found = {path.stem: Entry(path.stem, path, True) for path in sorted(CATALOG.glob("*.yaml"))}
    if extra is not None:
        found |= {path.stem: Entry(path.stem, path, False) for path in sorted(extra.glob("*.yaml"))}
    return dict(sorted(found.items()))


def find(name: str, extra: Path | None = None) -> Profile:
    """The profile called `name`. Raises UnknownProfile (with the nearest names) or ProfileError."""
    return settle(stack(name, extra))[0]


def read(path: Path) -> Profile:
    """Check one file; what it extends is looked for beside it, then in the catalogue."""
    return settle(_chain(Entry(path.stem, path, path.parent == CATALOG), path.parent, ()))[0]


def stack(name: str, extra: Path | None = None) -> list[Layer]:
    """The files that make up the profile, the weakest first."""
    return _chain(_entry(name, entries(extra)), extra, ())


def settle(layers: Sequence[Layer]) -> tuple[Profile, Merged]:
    """Merge and check. Raises ProfileError, SettingsConflict or UsageProblem: whose layer is wrong decides which."""
    merged = merge(layers)
    try:
        return Profile.model_validate(merged.values), merged
    except ValidationError as error:
        problems = _readable(error.errors(include_url=False))
        guilty = _guilty(layers)
        texts = dict.fromkeys(_explain(guilty, merged, problem) for problem in problems)
        kind: type[LauncherError] = WRONG.get(guilty.rank, ProfileError)
        raise kind("\n".join(texts)) from None


def _readable(problems: Sequence[Any]) -> list[Any]:
    """Without the traces of a union in the keys; of its alternatives, the one that got furthest."""
    found: dict[str, list[Any]] = {}
    for problem in problems:
        loc = tuple(part for part in problem["loc"] if not isinstance(part, str) or "[" not in part)
        found.setdefault(str(loc[:1]) if len(loc) < len(problem["loc"]) else str(loc), []).append(
            {**problem, "loc": loc}
        )
    return [one for group in found.values() for one in group if len(one["loc"]) == max(len(o["loc"]) for o in group)]


def _guilty(layers: Sequence[Layer]) -> Layer:
    """The layer that made it wrong: files are judged together, then each layer on top of them."""
    files = sum(layer.rank in (BUILT_IN, USER) for layer in layers)
    for count in range(max(files, 1), len(layers)):
        try:
            Profile.model_validate(merge(layers[:count]).values)
        except ValidationError:
            return layers[count - 1]
    return layers[-1]


def warnings(profile: Profile) -> list[str]:
    """What is allowed but unwise."""
    sources = {"model": profile.model, "drafter": profile.drafter, "tokenizer": profile.tokenizer}
    return [
        f"{name}.revision is not pinned: {source.id} may change under you; `radiance fetch --pin FOLDER` writes the commit down"
        for name, source in sources.items()
        if source is not None and source.id and not source.revision
    ]


def schema() -> dict[str, Any]:
    """JSON Schema of a profile file, for editors and for the Helm chart. `null` takes away what an extended file gave."""
    made = Profile.model_json_schema()
    made["required"] = ["schema_version", "name"]
    # A file that extends another may give part of a section; one that does not must give it whole.
    whole = {
        name: {"required": made["$defs"][section.__name__].pop("required")}
        for name, section in {"speculative": Speculative, "architecture": Architecture}.items()
    }
    made["anyOf"] = [{"required": ["extends"]}, {"required": list(REQUIRED), "properties": whole}]
    for part in (made, *made["$defs"].values()):
        for name, field in part.get("properties", {}).items():
            if name not in made["required"]:
                part["properties"][name] = _or_null(field)
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **made, "title": "Radiance profile"}


def _or_null(field: dict[str, Any]) -> dict[str, Any]:
    """The same field, null allowed too, also for the values of a mapping."""
    if isinstance(values := field.get("additionalProperties"), dict):
        field = {**field, "additionalProperties": _or_null(values)}
    if any(choice.get("type") == "null" for choice in field.get("anyOf", ())):
        return field
    notes: dict[str, Any] = {key: field[key] for key in ("title", "description", "default") if key in field}
    rule = {key: value for key, value in field.items() if key not in notes}
    choices = rule["anyOf"] if list(rule) == ["anyOf"] else [rule]
    return {**notes, "anyOf": [*choices, {"type": "null"}]}


def _entry(name: str, known: Mapping[str, Entry]) -> Entry:
    if name not in known:
        near = nearest(name, known)
        hint = f"did you mean {' or '.join(near)}?" if near else f"known: {', '.join(known) or 'none'}"
        raise UnknownProfile(f"there is no profile {name!r}; {hint} (`radiance profiles list` shows all)")
    return known[name]


def _chain(entry: Entry, extra: Path | None, above: tuple[Path, ...]) -> list[Layer]:
    path = entry.path
    data, lines = load(path)
    if not isinstance(data, dict):
        raise ProfileError(f"{path}: a profile is a mapping, this is a {type(data).__name__}")
    layer = Layer(BUILT_IN if entry.built_in else USER, str(path), data, lines)
    name, base = data.get("name"), data.get("extends")
    if isinstance(name, str) and name != path.stem:
        raise ProfileError(
            f"{layer.place(('name',))}: name is {name!r} but the file is called {path.name}; make them equal"
        )
    if base is None:
        return [layer]
    if path in above:
        ring = " -> ".join(p.stem for p in (*above, path))
        raise ProfileError(f"{layer.place(('extends',))}: extends goes in a ring: {ring}")
    # A file that extends its own name means the built-in profile it lies over.
    known = entries(None if base == path.stem else extra)
    try:
        below = _chain(_entry(str(base), known), extra, (*above, path))
    except UnknownProfile as error:
        raise ProfileError(f"{layer.place(('extends',))}: extends: {error}") from error
    inherited = [
        Layer(one.rank, one.origin, {k: v for k, v in one.values.items() if k not in OWN}, one.lines) for one in below
    ]
    return [*inherited, layer]


def _explain(guilty: Layer, merged: Merged, problem: Any) -> str:
    loc: tuple[str | int, ...] = tuple(problem["loc"])
    where = (merged.giver(loc) or guilty).place(loc)
    key = ".".join(map(str, loc)) or "the profile"
    kind, text = problem["type"], problem["msg"].removeprefix("Value error, ")
    if kind in ("extra_forbidden", "missing"):
        allowed = _keys(loc[:-1])
        near = nearest(str(loc[-1]), allowed, limit=1)
        hint = f" (did you mean {near[0]!r}?)" if near and kind == "extra_forbidden" else ""
        rule = "is not a key" if kind == "extra_forbidden" else "is missing"
        return f"{where}: {key!r} {rule}{hint}; allowed here: {', '.join(allowed)}"
    given = problem.get("input")
    shown = f" (given: {given!r})" if isinstance(given, (bool, int, float, str)) else ""
    near = []
    if kind in ("enum", "literal_error") and isinstance(given, str):
        near = nearest(
            given, [word.strip("'") for word in problem["ctx"]["expected"].replace(" or ", ", ").split(", ")], limit=1
        )
    return f"{where}: {key}: {text}{shown}{f'; did you mean {near[0]!r}?' if near else ''}"


def _keys(loc: tuple[str | int, ...]) -> list[str]:
    """The keys allowed at a place of the schema."""
    model: type[BaseModel] = Profile
    for part in loc:
        if isinstance(part, str) and part in model.model_fields:
            model = _section(cast(Hashable, model.model_fields[part].annotation)) or model
    return list(model.model_fields)


@cache
def _section(annotation: Hashable) -> type[BaseModel] | None:
    """The model inside `Model | None`, `list[Model]` and the like."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    if get_origin(annotation) in (Union, UnionType, list):
        return next((found for arg in get_args(annotation) if (found := _section(arg))), None)
    return None
