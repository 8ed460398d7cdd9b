"""Commands to run before `serve`: fetch."""

from __future__ import annotations

import os
from pathlib import Path

import click

from launcher.commands.common import profile_option, profiles_dir
from launcher.errors import UsageProblem


@click.command()
@profile_option
@profiles_dir
def fetch(profile: str, profiles_dir: Path | None) -> None:
    """Prepare the profile's model ahead of `serve`."""
    from launcher import profiles, smollm2

    found = profiles.find(profile, profiles_dir)
    if not found.model.embedded:
        source = found.model.id or found.model.path
        raise UsageProblem(
            f"fetch prepares embedded models; profile {profile!r} uses {source}, which vLLM loads by itself at start"
        )
    smollm2.prepare(smollm2.folder(os.environ), lambda line: click.echo(line))
