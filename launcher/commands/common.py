"""Options that several commands have, and the table they print."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import click

profiles_dir = click.option(
    "--profiles-dir",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="Folder of profiles laid over the built-in ones.",
)
profile_option = click.option(
    "--profile", required=True, metavar="NAME", help="Name of a profile; see `radiance profiles list`."
)
set_option = click.option(
    "--set",
    "sets",
    multiple=True,
    metavar="FIELD=VALUE",
    help="Change a field of the profile: --set tensor_parallel_size=2, --set speculative=null. Wins over all else.",
)
json_option = click.option("--json", "as_json", is_flag=True, help="For machines.")


def table(rows: Sequence[Sequence[str]]) -> str:
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]) - 1)]
    return "\n".join(
        "  ".join([*(cell.ljust(width) for cell, width in zip(row, widths, strict=False)), row[-1]]) for row in rows
    )
