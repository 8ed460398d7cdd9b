"""The arguments of `vllm serve`: those of the profile and those after `--`, and what happens when they meet.

An argument after `--` replaces one of the profile's `args` of the same name. An option that has a field of its own is
refused there, whether the profile sets the field or not: a second value would leave the launcher believing in the first (the
address, the model, the drafter, how many accelerators, how much memory). `--set FIELD=VALUE` is the way to change it.
Secrets are refused because every user of the machine can read a command line.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence
from typing import Any

from launcher.errors import UsageProblem
from launcher.owned import ENGINE_FIELDS, FIELDS, LAUNCHER, SECRETS, owned
from launcher.schema import Profile

SHORT = {"sc": "speculative-config", "tp": "tensor-parallel-size", "pp": "pipeline-parallel-size", "cc": "compilation-config",
         "dp": "data-parallel-size", "dpa": "data-parallel-address", "n": "nnodes", "r": "node-rank", "h": "help"}  # fmt: skip


def build(
    profile: Profile,
    extra: tuple[str, ...],
    model: str,
    drafter: tuple[str, str | None] | None,
    host: str,
    port: int,
    drain_seconds: int,
) -> tuple[list[str], list[str]]:
    """Everything after `vllm serve`, and notes. Raises UsageProblem."""
    given = names(extra)
    _refuse(profile, extra, given)
    argv = [model, *_own(profile), "--host", host, "--port", str(port)]
    notes = []
    for name, value in profile.args.items():
        if winners := replaced(name, given):
            notes.append(f"--{winners.pop()} after -- wins over {name}: {value} of the profile")
        else:
            argv += option(name, value)
    if profile.speculative:
        argv += ["--speculative-config", json.dumps(_speculative(profile, drafter))]
    if "shutdown-timeout" in given | set(profile.args):
        notes.append("shutdown-timeout is given; vLLM is killed --grace-seconds after SIGTERM all the same")
    else:
        argv += ["--shutdown-timeout", str(drain_seconds)]
    return argv + list(extra), notes


def _own(profile: Profile) -> list[str]:
    """The options that have fields; a size of 1 is vLLM's own default and left out."""
    argv = []
    if profile.model.revision:
        argv += ["--revision", profile.model.revision]
    if profile.tokenizer:
        argv += ["--tokenizer", str(profile.tokenizer.id or profile.tokenizer.path)]
        if profile.tokenizer.revision:
            argv += ["--tokenizer-revision", profile.tokenizer.revision]
    argv += ["--served-model-name", profile.served_name, *profile.aliases]
    for field in ENGINE_FIELDS:
        value = getattr(profile, field)
        if value is not None and not (field.endswith("parallel_size") and value == 1):
            argv += option(field.replace("_", "-"), value)
    return argv


def names(extra: tuple[str, ...]) -> set[str]:
    """Long names of the options in `extra`: dashes off, underscores as dashes, short names spelt out, `.sub.key` cut."""
    return set(values(extra))


def values(argv: Sequence[str]) -> dict[str, str]:
    """Names as above -> the value after `=` or in the next word; empty for one that has none. The last of a name counts."""
    found, name = {}, ""
    for token in argv:
        if len(token) > 1 and token.startswith("-") and not token[1].isdigit() and token[1] != ".":
            word, _, value = token.partition("=")
            name = word.lstrip("-").split(".", 1)[0].replace("_", "-")
            name = SHORT.get(name, name) if not token.startswith("--") else name
            found[name] = value
        elif name:
            found[name], name = found[name] or token, ""
    return found


def replaced(name: str, given: set[str]) -> set[str]:
    """The options among `given` that stand for the same thing as `name` of the profile's args."""
    return {name, name.removeprefix("no-"), f"no-{name}"} & given


def option(name: str, value: Any) -> list[str]:
    """One option as vLLM reads it: true -> --name, false -> --no-name, list -> several words, mapping -> JSON."""
    if isinstance(value, bool):
        return [f"--{name}" if value else f"--no-{name}"]
    if isinstance(value, list):
        return [f"--{name}", *map(str, value)]
    text = json.dumps(value) if isinstance(value, dict) else str(value)
    return [f"--{name}={text}"] if text.startswith("-") else [f"--{name}", text]


def quote(text: str) -> str:
    return shlex.quote(text)


def _speculative(profile: Profile, drafter: tuple[str, str | None] | None) -> dict[str, Any]:
    assert profile.speculative is not None
    config = profile.speculative.config()
    if drafter:
        config["model"] = drafter[0]
        if drafter[1]:
            config["revision"] = drafter[1]
    return config


def _refuse(profile: Profile, extra: tuple[str, ...], given: set[str]) -> None:
    if extra and not extra[0].startswith("-"):
        raise UsageProblem(
            f"{extra[0]!r} after -- is not an option; the model comes from profile {profile.name!r} ({_model(profile)})"
        )
    for name in sorted(given):
        flag = owned(name)
        if flag in SECRETS:
            raise UsageProblem(
                f"--{name} after -- would show a secret to every user of this machine; set {SECRETS[flag]} in the environment"
            )
        if flag in LAUNCHER:
            raise UsageProblem(f"--{name} after -- is the launcher's to set: {LAUNCHER[flag].here}")
        if flag in FIELDS:
            raise UsageProblem(_conflict(profile, name, FIELDS[flag]))


def _conflict(profile: Profile, name: str, field: str) -> str:
    key = field.split(" and ")[0]
    if key == "model":
        has, example = _model(profile), "model.id=OWNER/NAME"
    elif key == "speculative":
        spec = profile.speculative
        has = f"method {spec.method}, num_speculative_tokens {spec.num_speculative_tokens}" if spec else "none"
        example = "speculative.num_speculative_tokens=4"
    else:
        value: Any = profile
        for part in key.split("."):
            value = getattr(value, part, None)
        has, example = str(value), f"{key}=VALUE"
    return (
        f"--{name} after -- conflicts with the field {field} of profile {profile.name!r} ({has}); "
        f"use --set {example} before the --, or change it in a profile of your own"
    )


def _model(profile: Profile) -> str:
    model = profile.model
    return str(model.id or model.embedded or model.path)
