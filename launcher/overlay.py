"""What lies over the files of a profile: the environment, then the command line.

The environment speaks through the plugin's own variables (RADIANCE_FAST_DRAFT is the field fast_draft) and through every
variable that the profile's `env` names; the command line through `--set FIELD=VALUE`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from launcher.errors import UsageProblem
from launcher.layers import Key, Layer, Merged, merge
from launcher.profiles import COMMAND_LINE, ENVIRONMENT, FastDraft, Profile, settle
from launcher.schema import OWN_VARIABLES, PLACES
from launcher.yamlfile import value as yaml_value
from radiance.settings import Mode, Settings

MODES = {FastDraft.ENABLED: Mode.ON, FastDraft.DISABLED: Mode.OFF, FastDraft.SHADOW: Mode.SHADOW}
WORDS = {mode: str(word) for word, mode in MODES.items()}
#: of the file itself: they say what it is, not what to serve
NOT_SET = ("schema_version", "name", "extends", "verified")


@dataclass(frozen=True)
class Settled:
    """The profile as it will be served, and who said what."""

    profile: Profile
    merged: Merged
    notes: tuple[str, ...]


def files_of(source: Profile | Sequence[Layer]) -> list[Layer]:
    """A profile that comes from no file counts as one built-in layer."""
    if isinstance(source, Profile):
        values = source.model_dump(mode="json", exclude_unset=True)
        return [Layer("built-in", f"profile {source.name}", values)]
    return list(source)


def settle_all(files: Sequence[Layer], user: Settings, environ: Mapping[str, str], sets: Sequence[str]) -> Settled:
    """Merge everything. Raises ProfileError, SettingsConflict or UsageProblem, by whose layer is wrong."""
    over = command_line(sets)
    # Also what a file or --set takes away: whether vLLM inherits it is decided here, and explain has to show it.
    named = {str(key[1]) for key in merge(files).history if key[0] == "env" and len(key) > 1}
    named |= set(over.values.get("env") or ())
    notes = []
    speaks = environment(named, user, environ)
    if "fast_draft" in speaks.values and not merge([*files, over]).values.get("speculative"):
        if user.enabled:
            notes.append(
                "RADIANCE_FAST_DRAFT asks for the 2-bit draft head, but this profile does not speculate: it stays off"
            )
        speaks = Layer(
            ENVIRONMENT, ENVIRONMENT, {k: v for k, v in speaks.values.items() if k != "fast_draft"}, names=speaks.names
        )
    profile, merged = settle([*files, speaks, over])
    return Settled(profile, merged, (*notes, *_beaten(merged)))


def environment(env_names: Iterable[str], user: Settings, environ: Mapping[str, str]) -> Layer:
    """`env_names`: what other layers say anything about in `env`. An empty variable is an unset one."""
    words: dict[str, Any] = {
        "RADIANCE_FAST_DRAFT": WORDS[user.mode],
        "RADIANCE_DRAFT_RERANK": user.rerank,
        "RADIANCE_REQUIRE": str(user.require),
        "RADIANCE_DRAFT_VOCAB": str(user.draft_vocab),
        "RADIANCE_SHADOW_SAMPLE": user.shadow_sample,
    }
    given = {field: (name, words[name]) for name, field in OWN_VARIABLES.items() if environ.get(name, "").strip()}
    own = {field: value for field, (_, value) in given.items()}
    named: dict[Key, str] = {(field,): name for field, (name, _) in given.items()}
    passed = {name: environ[name] for name in sorted(env_names) if environ.get(name)}
    named |= {("env", name): name for name in passed}
    return Layer(ENVIRONMENT, ENVIRONMENT, {**own, **({"env": passed} if passed else {})}, names=named)


def command_line(sets: Sequence[str]) -> Layer:
    """`FIELD=VALUE`, FIELD with dots, VALUE as in a file. Later ones win. Raises UsageProblem."""
    layers = []
    for text in sets:
        path, equals, written = text.partition("=")
        keys = path.strip().split(".")
        if not equals or not all(keys):
            raise UsageProblem(
                f"--set takes FIELD=VALUE, such as --set rerank=64 or --set speculative=null, not {path!r}"
            )
        if keys[0] in NOT_SET:
            raise UsageProblem(
                f"--set {keys[0]}: that is the file's to say; the fields are in `radiance profiles schema`"
            )
        try:
            value: Any = yaml_value(written)
        except ValueError as error:
            raise UsageProblem(f"--set {path}: the value is not valid YAML: {error}") from error
        for key in reversed(keys):
            value = {key: value}
        layers.append((value, {tuple(keys): f"--set {path}"}))
    values: dict[str, Any] = {}
    for value, _ in layers:
        values = _over(values, value)
    if fixed := set(values.get("env") or ()) & set(PLACES):
        raise UsageProblem(f"--set env: {', '.join(sorted(fixed))} is for the launcher too; set it in the environment")
    return Layer(
        COMMAND_LINE, COMMAND_LINE, values, names={key: name for _, names in layers for key, name in names.items()}
    )


def _over(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """Mappings merged, null kept: it still has to take something away from the layers below."""
    result = dict(below)
    for name, value in above.items():
        old = result.get(name)
        result[name] = _over(old, value) if isinstance(old, Mapping) and isinstance(value, Mapping) else value
    return result


def _beaten(merged: Merged) -> list[str]:
    """A line for each variable that changes what holds without it. What was typed after --set needs none."""
    lines = []
    for key, given in merged.history.items():
        here = given[-1]
        if here.layer.rank != ENVIRONMENT:
            continue
        field = Profile.model_fields[str(key[0])]
        below = given[-2].value if len(given) > 1 else field.default
        word, was = (MODES.get(value, value) for value in (here.value, below))
        if str(word) != str(was):
            lines.append(f"{here.layer.place(key)}={word} from the environment wins over {was} of the profile")
    return lines
