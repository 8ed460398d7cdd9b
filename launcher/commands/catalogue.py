"""`radiance profiles`: what can be served, where it was seen to work, whether it fits this machine."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import click

from launcher.commands.common import json_option, profiles_dir, table
from launcher.errors import LauncherError, ProfileError


@click.group("profiles")
def profiles_group() -> None:
    """Look at the profiles."""


@profiles_group.command("list")
@profiles_dir
@json_option
def list_command(profiles_dir: Path | None, as_json: bool) -> None:
    """All profiles: verified or not, fit for this machine or why not, what they serve. Exit 65 when a file is wrong."""
    from launcher import machine, profiles
    from launcher.checks import software

    here, vllm = machine.look(os.environ), software.installed()
    found: list[dict[str, Any]] = []
    for entry in profiles.entries(profiles_dir).values():
        row: dict[str, Any] = {"name": entry.name, "from": "built in" if entry.built_in else "yours"}
        try:
            profile = profiles.find(entry.name, profiles_dir)
        except LauncherError as error:
            # The others can be served all the same.
            found.append(
                row | {"verified": False, "misfits": ["the file is wrong"], "summary": "", "problem": str(error)}
            )
            continue
        found.append(
            row
            | {
                "verified": profile.verified != "no",
                "misfits": [
                    *machine.misfits(profile, here),
                    *filter(None, [vllm and software.out_of_range(vllm, profile)]),
                ],
                "summary": profile.summary,
                "problem": "",
            }
        )
    wrong = ProfileError.exit_code if any(row["problem"] for row in found) else 0
    if as_json:
        click.echo(json.dumps({"profiles": found, "problems": list(here.problems)}, indent=2))
        sys.exit(wrong)
    rows = [
        (row["name"], "yes" if row["verified"] else "no", row["from"], f"no: {'; '.join(row['misfits'])}" if row["misfits"] else "yes",
         " ".join(row["problem"].split()) or row["summary"])
        for row in found
    ]  # fmt: skip
    click.echo(table([("NAME", "VERIFIED", "FROM", "FITS HERE", "SUMMARY"), *rows]))
    for problem in here.problems:
        click.echo(f"note: {problem}", err=True)
    sys.exit(wrong)


@profiles_group.command("show")
@click.argument("name")
@profiles_dir
def show_command(name: str, profiles_dir: Path | None) -> None:
    """The profile as it was understood, defaults filled in, as JSON."""
    from launcher import profiles

    click.echo(json.dumps(profiles.find(name, profiles_dir).model_dump(mode="json", exclude_none=True), indent=2))


@profiles_group.command("validate")
@click.argument("files", nargs=-1, type=click.Path(exists=True, dir_okay=False, path_type=Path))
@profiles_dir
@json_option
def validate_command(files: tuple[Path, ...], profiles_dir: Path | None, as_json: bool) -> None:
    """Check FILES, or the whole catalogue (with --profiles-dir over it); all problems, exit 65 when there are any.

    What is allowed but unwise is told as a warning: a hub repository without a pinned revision can change under you.
    """
    from launcher import profiles

    paths = list(files) or [entry.path for entry in profiles.entries(profiles_dir).values()]
    found = []
    for path in paths:
        problem, warnings = "", []
        try:
            warnings = profiles.warnings(profiles.read(path))
        except LauncherError as error:
            problem = str(error)
        found.append({"file": str(path), "problem": problem, "warnings": warnings})
        if not as_json:
            for line in filter(None, [problem, *(f"{path}: warning: {warning}" for warning in warnings)]):
                click.echo(line, err=True)
    bad = sum(bool(one["problem"]) for one in found)
    click.echo(json.dumps(found, indent=2) if as_json else f"{len(paths) - bad} of {len(paths)} profiles are valid")
    sys.exit(ProfileError.exit_code if bad else 0)


@profiles_group.command("schema")
def schema_command() -> None:
    """JSON Schema of a profile file, for your editor."""
    from launcher import profiles

    click.echo(json.dumps(profiles.schema(), indent=2))
