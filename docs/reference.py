"""The reference pages that are made from code: `make docs` writes them, tests/test_docs.py compares them.

python docs/reference.py            write every page
python docs/reference.py NAME       print one: settings, commands, profile-schema or catalogue
"""

from __future__ import annotations

import argparse
import importlib
import re
import sys
import textwrap
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import click

from launcher import profiles
from launcher.cli import main as radiance
from launcher.profiles import Profile
from radiance.settings import VARIABLES

FOLDER = Path(__file__).parent
#: commands that become `python -m radiance.NAME`, where argparse reads the options
MODULES = ("accuracy", "tune", "vocab", "bench")


def settings() -> str:
    rows = [(f"`{name}`", meaning, f"`{default}`") for name, (meaning, default) in VARIABLES.items()]
    return _page(
        "Settings",
        "radiance/settings.py",
        "Environment variables that the plugin reads once, when vLLM starts. The launcher sets them from the profile; what "
        "is in your environment wins. An empty value is an unset one. The launcher refuses an unknown `RADIANCE_*` name or a "
        "bad value with exit code 78; inside a vLLM of your own the head is then declined, the server runs on.",
        "Kubernetes makes variables from Services (`RADIANCE_SERVICE_HOST`, `RADIANCE_PORT_8000_TCP`, ...). Names of that form "
        "are never settings: they are ignored, with one warning.",
        _table(("variable", "meaning", "default"), rows),
    )


def commands() -> str:
    return _page(
        "Commands",
        "launcher/cli.py",
        "`radiance --profile X`, without a command, is `radiance serve --profile X`. Exit codes are in "
        "[operations](operations.md).",
        *_command(radiance, "radiance"),
    )


def profile_schema() -> str:
    schema = Profile.model_json_schema()
    parts = [
        _fields("A profile", schema),
        *(_fields(f"`{name}`", part) for name, part in sorted(schema["$defs"].items())),
    ]
    return _page(
        "Fields of a profile",
        "launcher/schema.py",
        "A profile is one YAML file; `radiance profiles show NAME` prints one with its defaults. An unknown field is refused by name. "
        "[Profiles](profiles.md) says how they are used.",
        *parts,
    )


def catalogue() -> str:
    found = [profiles.find(name) for name in profiles.entries()]
    rows = [
        (
            f"`{profile.name}`",
            profile.summary,
            _accelerators(profile),
            str(profile.fast_draft),
            "no"
            if profile.verified == "no"
            else "; ".join(f"{v.device}, vLLM {v.vllm}, {v.date}" for v in profile.verified),
        )
        for profile in found
    ]
    return _page(
        "The catalogue",
        "launcher/catalog",
        "The built-in [profiles](profiles.md). Their files have comments: where the figures come from, and what was reported.",
        _table(("profile", "serves", "needs", "2-bit head", "verified"), rows),
    )


def _accelerators(profile: Profile) -> str:
    wanted = profile.accelerator
    if "cpu" in wanted.kinds:
        return "a CPU"
    memory = f" of {wanted.memory_gib_min:g} GiB" if wanted.memory_gib_min else ""
    return f"{profile.world_size} x {' or '.join(wanted.kinds)}{memory}"


PAGES: dict[str, Callable[[], str]] = {
    "settings": settings,
    "commands": commands,
    "profile-schema": profile_schema,
    "catalogue": catalogue,
}


def _page(title: str, source: str, *parts: str) -> str:
    """Prose is wrapped; headings, tables and code are left as they are."""
    made = f"Made from `{source}` by `make docs`."
    wrapped = [part if part.startswith(("#", "|", "```")) else _wrap(part) for part in (made, *parts)]
    return "\n\n".join([f"# {title}", *wrapped]) + "\n"


def _wrap(text: str) -> str:
    return textwrap.fill(text, 120, break_long_words=False, break_on_hyphens=False)


def _table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    lines = [head, ("---",) * len(head), *(tuple(_cell(cell) for cell in row) for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _cell(text: str) -> str:
    return re.sub(r"\s+", " ", text).strip().replace("|", r"\|")


def _sentence(text: str | None) -> str:
    """One line that begins with a capital and ends with a full stop."""
    line = re.sub(r"\s+", " ", text or "").strip()
    return line and line[0].upper() + line[1:] + ("" if line.endswith(".") else ".")


def _command(command: click.Command, name: str) -> Iterator[str]:
    """Heading, help and options of a command, then of those below it."""
    if command.name in MODULES:
        yield from _module(command, name)
        return
    # NOTE: with its settings: click keeps the help option that it makes here for all later calls
    context = click.Context(command, info_name=name, **command.context_settings)
    options = [
        (f"`{', '.join([*p.opts, *p.secondary_opts])}`", p.help or "", _default(p))
        for p in command.get_params(context)
        if isinstance(p, click.Option) and "--help" not in p.opts
    ]
    if name != "radiance":
        yield f"{'#' * len(name.split())} {name}"
        yield _sentence(command.help)
        yield f"```\n{' '.join([name, *command.collect_usage_pieces(context)])}\n```"
    if options:
        yield _table(("option", "meaning", "default"), options)
    if isinstance(command, click.Group):
        for child in command.list_commands(context):
            found = command.get_command(context, child)
            assert found is not None
            yield from _command(found, f"{name} {child}")


def _default(option: click.Option) -> str:
    if option.required:
        return "required"
    if option.is_flag and option.secondary_opts:
        return f"`{(option.opts if option.default else option.secondary_opts)[0]}`"
    return (
        f"`{option.default}`"
        if option.default not in (None, False, ()) and isinstance(option.default, str | int | float)
        else ""
    )


class _Parser(Exception):
    """Carries a parser out of a main()."""


def module_parser(name: str) -> argparse.ArgumentParser:
    """The parser that `python -m radiance.NAME` builds, caught before it parses."""
    module = importlib.import_module(f"radiance.{name}")

    def caught(self: argparse.ArgumentParser, *_: Any, **__: Any) -> None:
        raise _Parser(self)

    with mock.patch.object(argparse.ArgumentParser, "parse_args", caught):
        try:
            module.main([])
        except _Parser as found:
            return found.args[0]  # type: ignore[no-any-return]
    raise TypeError(f"radiance/{name}.py has no argparse.ArgumentParser")


def _module(command: click.Command, name: str) -> Iterator[str]:
    yield f"## {name}"
    yield f"{_sentence((command.help or '').partition(';')[0])} Needs torch: it is `python -m radiance.{command.name}`."
    yield from _parser(module_parser(command.name or ""), name)


def _parser(parser: argparse.ArgumentParser, name: str) -> Iterator[str]:
    rows, below = [], []
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            helps = {choice.dest: choice.help or "" for choice in action._choices_actions}
            below += [(child, helps.get(child, ""), sub) for child, sub in action.choices.items()]
        elif action.dest != "help":
            default = (
                action.default
                if isinstance(action.default, str | int | float) and action.default not in ("", False)
                else ""
            )
            shown = "required" if action.required else f"`{default}`" if default != "" else ""
            rows.append(
                (f"`{', '.join(action.option_strings) or action.dest}`", (action.help or "").replace("%%", "%"), shown)
            )
    if rows:
        yield _table(("option", "meaning", "default"), rows)
    for child, text, sub in below:
        yield f"### {name} {child}"
        if text:
            yield _sentence(text)
        yield from _parser(sub, f"{name} {child}")


def _fields(title: str, schema: dict[str, Any]) -> str:
    parts = [f"## {title}"]
    if text := schema.get("description"):
        parts.append(_cell(text))
    if "enum" in schema:
        parts.append("One of " + ", ".join(f"`{value}`" for value in schema["enum"]) + ".")
    required = schema.get("required", [])
    rows = [
        (
            f"`{name}`",
            _type(field),
            "required" if name in required else _shown(field.get("default")),
            field.get("description", ""),
        )
        for name, field in schema.get("properties", {}).items()
    ]
    if rows:
        parts.append(_table(("field", "type", "default", "meaning"), rows))
    return "\n\n".join(parts)


def _shown(default: object) -> str:
    return (
        ""
        if default in (None, "") or isinstance(default, dict | list)
        else f"`{str(default).lower() if isinstance(default, bool) else default}`"
    )


def _type(field: dict[str, Any]) -> str:
    if "$ref" in field:
        name = field["$ref"].rpartition("/")[2]
        return f"[{name}](#{name.lower()})"
    if "anyOf" in field or "allOf" in field:
        return " or ".join(_type(part) for part in field.get("anyOf") or field["allOf"] if part.get("type") != "null")
    if "const" in field:
        return f"`{field['const']}`"
    if "enum" in field:
        return " or ".join(f"`{value}`" for value in field["enum"])
    name = str(field.get("type", "any"))
    if name == "array":
        return f"list of {_type(field.get('items', {}))}"
    if name == "object" and isinstance(field.get("additionalProperties"), dict):
        return f"map to {_type(field['additionalProperties'])}"
    bounds = [
        f"{sign} {field[key]}"
        for key, sign in (("minimum", ">="), ("exclusiveMinimum", ">"), ("maximum", "<="), ("exclusiveMaximum", "<"))
        if key in field
    ]
    return f"{name} {', '.join(bounds)}".strip() + (f" `{field['pattern']}`" if "pattern" in field else "")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        sys.stdout.write(PAGES[sys.argv[1]]())
    else:
        for page, render in PAGES.items():
            (FOLDER / f"{page}.md").write_text(render())
