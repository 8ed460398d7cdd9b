"""Profiles: one YAML file each, checked by a pydantic model. The built-in ones are data in catalog/.

A profile says what to serve and how, once, so that a command line needs only its name. A folder given with
--profiles-dir is laid over the catalogue: a file there hides the built-in profile of the same name.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from launcher.errors import ProfileError, UnknownProfile, nearest
from launcher.yamlfile import Lines, load
from radiance.settings import MAX_RERANK, Require

CATALOG = Path(__file__).parent / "catalog"
NAME = r"^[a-z0-9]([a-z0-9._-]*[a-z0-9])?$"
#: environment names whose values are never in a profile and never printed
SECRET_NAME = re.compile(r"KEY|TOKEN(?!IZER)|SECRET|PASSWORD", re.IGNORECASE)
#: vLLM options the launcher sets from other fields; in `args` they would fight
OWNED_ARGS = {
    "model": "model",
    "revision": "model.revision",
    "served-model-name": "served_name",
    "speculative-config": "speculative and drafter",
    "host": "the option --host",
    "port": "the option --port",
    "api-key": "the environment variable VLLM_API_KEY",
    "hf-token": "the environment variable HF_TOKEN",
}


def looks_secret(name: str) -> bool:
    """True for an environment name whose value must not be shown. Errs on the side of hiding."""
    return SECRET_NAME.search(name) is not None


class FastDraft(StrEnum):
    ENABLED = "enabled"
    DISABLED = "disabled"
    SHADOW = "shadow"


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=False)


class Model(_Strict):
    """What is served: exactly one of a hub id, an embedded model, or a folder."""

    id: str | None = Field(default=None, min_length=1, description="repository on the model hub")
    embedded: Literal["smollm2"] | None = Field(
        default=None, description="a model that `radiance fetch` prepares by itself"
    )
    path: Path | None = Field(default=None, description="folder of a checkpoint")
    revision: str | None = Field(default=None, min_length=1, description="commit or tag; only with id")

    @model_validator(mode="after")
    def _one_source(self) -> Model:
        given = [name for name in ("id", "embedded", "path") if getattr(self, name) is not None]
        if len(given) != 1:
            raise ValueError(f"give exactly one of id, embedded and path; given: {', '.join(given) or 'none'}")
        if self.revision and self.id is None:
            raise ValueError(f"revision belongs to id; {given[0]} has none")
        return self


class Drafter(_Strict):
    """A drafter that is a checkpoint of its own. Left out when the model carries its drafter (MTP)."""

    id: str | None = Field(default=None, min_length=1)
    path: Path | None = None
    same_as_model: bool = False
    revision: str | None = Field(default=None, min_length=1)

    @model_validator(mode="after")
    def _one_source(self) -> Drafter:
        given = [name for name in ("id", "path", "same_as_model") if getattr(self, name)]
        if len(given) != 1:
            raise ValueError(f"give exactly one of id, path and same_as_model; given: {', '.join(given) or 'none'}")
        if self.revision and self.id is None:
            raise ValueError(f"revision belongs to id; {given[0]} has none")
        return self


class Speculative(BaseModel):
    """vLLM's speculative_config. Keys of vLLM that are not named here pass through; `model` comes from `drafter`."""

    model_config = ConfigDict(extra="allow", frozen=True)
    method: str = Field(min_length=1)
    num_speculative_tokens: int = Field(ge=1, le=64)

    @model_validator(mode="after")
    def _drafter_elsewhere(self) -> Speculative:
        for name in ("model", "revision"):
            if name in (self.model_extra or {}):
                raise ValueError(f"{name} is not set here but in the profile's drafter")
        return self


class Expected(_Strict):
    """What a healthy server shows; outside of it something is wrong with the drafter. The alerts compare with these."""

    acceptance_per_draft_min: float | None = Field(default=None, ge=0)
    draft_head_latency_seconds_max: float | None = Field(
        default=None, gt=0, description="mean duration of a draft-head call"
    )


class Verified(_Strict):
    """One place where the profile was seen to work."""

    device: str
    vllm: str
    date: str
    note: str = ""


Scalar = bool | int | float | str


class Profile(_Strict):
    schema_version: Literal[1]
    name: str = Field(pattern=NAME, max_length=63)
    summary: str = Field(min_length=1)
    model: Model
    drafter: Drafter | None = None
    served_name: str = Field(min_length=1)
    args: dict[str, Scalar | list[Scalar] | dict[str, Any]] = Field(default_factory=dict)
    env: dict[str, str] = Field(default_factory=dict)
    speculative: Speculative | None = None
    fast_draft: FastDraft = FastDraft.DISABLED
    rerank: Annotated[int, Field(ge=1, le=MAX_RERANK)] | None = None
    require: Require = Require.WARN
    startup_budget_seconds: int = Field(default=600, ge=1)
    expected: Expected = Expected()
    verified: Literal["no"] | list[Verified]

    @field_validator("fast_draft", mode="before")
    @classmethod
    def _no_boolean(cls, value: object) -> object:
        if isinstance(value, bool):
            raise ValueError(
                f"write {'enabled' if value else 'disabled'}, not {str(value).lower()}: there are three modes"
            )
        return value

    @field_validator("env", mode="before")
    @classmethod
    def _text_values(cls, value: object) -> object:
        if isinstance(value, dict):
            return {name: item if isinstance(item, (dict, list, bool)) else str(item) for name, item in value.items()}
        return value

    @field_validator("env")
    @classmethod
    def _own_env(cls, value: dict[str, str]) -> dict[str, str]:
        for name in value:
            if name.startswith("RADIANCE_"):
                raise ValueError(f"{name} is set from the fields fast_draft, rerank and require")
            if looks_secret(name):
                raise ValueError(
                    f"{name} looks like a secret; a profile is no place for one, set it in the environment"
                )
        return value

    @field_validator("args")
    @classmethod
    def _own_args(cls, value: dict[str, Any]) -> dict[str, Any]:
        for name in value:
            if name.startswith("-") or "_" in name:
                raise ValueError(
                    f"write {name.lstrip('-').replace('_', '-')!r} instead of {name!r}: long names, no dashes in front"
                )
            owner = OWNED_ARGS.get(name.split(".")[0])
            if owner:
                raise ValueError(f"{name} is set through {owner}")
        return value

    @model_validator(mode="after")
    def _together(self) -> Profile:
        if self.drafter and not self.speculative:
            raise ValueError("drafter without speculative: nothing would use it")
        if self.fast_draft is not FastDraft.DISABLED and not self.speculative:
            raise ValueError(f"fast_draft is {self.fast_draft} but there is no speculative: no draft head to replace")
        return self


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
    known = entries(extra)
    if name not in known:
        near = nearest(name, known)
        hint = f"did you mean {' or '.join(near)}?" if near else f"known: {', '.join(known) or 'none'}"
        raise UnknownProfile(f"there is no profile {name!r}; {hint} (`radiance profiles list` shows all)")
    return read(known[name].path)


def read(path: Path) -> Profile:
    """Check one file. Raises ProfileError that names file, line, key, what is allowed, and the nearest name."""
    data, lines = load(path)
    if not isinstance(data, dict):
        raise ProfileError(f"{path}: a profile is a mapping, this is a {type(data).__name__}")
    try:
        profile = Profile.model_validate(data)
    except ValidationError as error:
        problems = [_explain(path, problem, lines) for problem in error.errors(include_url=False)]
        raise ProfileError("\n".join(dict.fromkeys(problems))) from None
    if profile.name != path.stem:
        raise ProfileError(
            f"{path}:{lines[('name',)]}: name is {profile.name!r} but the file is called {path.name}; make them equal"
        )
    return profile


def _explain(path: Path, problem: Any, lines: Lines) -> str:
    loc: tuple[str | int, ...] = tuple(problem["loc"])
    place = loc
    while place and place not in lines:
        place = place[:-1]
    where = f"{path}:{lines.get(place, 1)}"
    key = ".".join(map(str, loc)) or "the profile"
    kind, text = problem["type"], problem["msg"].removeprefix("Value error, ")
    if kind in ("extra_forbidden", "missing"):
        allowed = _keys(loc[:-1])
        near = nearest(str(loc[-1]), allowed, limit=1)
        hint = f" (did you mean {near[0]!r}?)" if near and kind == "extra_forbidden" else ""
        rule = "is not a key" if kind == "extra_forbidden" else "is missing"
        return f"{where}: {key!r} {rule}{hint}; allowed here: {', '.join(allowed)}"
    given = problem.get("input")
    shown = f" (given: {given!r})" if isinstance(given, Scalar) else ""
    near = (
        nearest(str(given), [str(v) for v in FastDraft], limit=1)
        if loc == ("fast_draft",) and isinstance(given, str)
        else []
    )
    return f"{where}: {key}: {text}{shown}{f'; did you mean {near[0]!r}?' if near else ''}"


def _keys(loc: tuple[str | int, ...]) -> list[str]:
    """The keys allowed at a place of the schema."""
    sections: dict[str, type[BaseModel]] = {
        "model": Model, "drafter": Drafter, "speculative": Speculative, "expected": Expected, "verified": Verified,
    }  # fmt: skip
    return list((sections[str(loc[0])] if loc else Profile).model_fields)
