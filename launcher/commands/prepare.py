"""Commands to run before `serve`: fetch what it needs, check that it can."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import click

from launcher.commands.common import json_option, profile_option, profiles_dir, set_option, table


@click.command()
@profile_option
@profiles_dir
@set_option
@click.option(
    "--offline", is_flag=True, help="Only look whether everything is here already; asks nobody. Exit 66 if not."
)
@click.option("--workers", default=8, show_default=True, type=click.IntRange(1, 64), help="Files at once.")
@click.option(
    "--pin",
    type=click.Path(file_okay=False, path_type=Path),
    metavar="FOLDER",
    help="Write the commits into a profile of the same name there, for --profiles-dir.",
)
@json_option
def fetch(
    profile: str,
    profiles_dir: Path | None,
    sets: tuple[str, ...],
    offline: bool,
    workers: int,
    pin: Path | None,
    as_json: bool,
) -> None:
    """Bring the profile's model, drafter and tokenizer into the cache, ahead of `serve`.

    A cut connection goes on where it broke; a second fetch waits for the first. Gated models need HF_TOKEN.
    """
    from launcher import fetch as fetching
    from launcher import plan, profiles, smollm2
    from launcher.options import Options
    from launcher.secrets import resolve

    os.environ.update(resolve(os.environ))

    settled = plan.build(profiles.stack(profile, profiles_dir), Options(sets=sets), os.environ).settled.profile

    def say(line: str) -> None:
        click.echo(line, err=as_json)

    if settled.model.embedded:
        folder = smollm2.folder(os.environ)
        if offline:
            smollm2.check(folder)
        else:
            smollm2.prepare(folder, say)
    found = fetching.check(settled) if offline else fetching.fetch(settled, say, workers, terminal=sys.stderr.isatty())
    if offline and not as_json:
        for one in found:
            say(f"{one.repository}: complete in {one.folder}")
    if pin is not None:
        say(f"wrote {fetching.pin(settled, found, pin)}")
    if as_json:
        rows = [
            {"role": f.repository.role, "id": f.repository.id, "commit": f.commit, "folder": str(f.folder)}
            for f in found
        ]
        click.echo(json.dumps(rows, indent=2))


@click.command()
@click.option("--profile", metavar="NAME", help="Also check what this profile needs.")
@profiles_dir
@set_option
@click.option("--offline", is_flag=True, help="Do not ask the model hub.")
@json_option
def doctor(profile: str | None, profiles_dir: Path | None, sets: tuple[str, ...], offline: bool, as_json: bool) -> None:
    """Check this machine, and say how to mend what is wrong. Exit 1 when something is.

    Every finding has a code (R01 to R16); `warn` does not change the exit code.
    """
    from dataclasses import asdict

    from launcher import checks, fetchahead, plan, profiles, surroundings
    from launcher.options import Options
    from launcher.secrets import resolve

    os.environ.update(resolve(os.environ))

    planned = None
    if profile is not None:
        planned = plan.build(profiles.stack(profile, profiles_dir), Options(sets=sets), os.environ)
    environ = planned.environment(os.environ) if planned else dict(os.environ)
    quiet = offline or fetchahead.offline(environ)
    around = surroundings.look(environ, list(planned.repositories) if planned else [], ask_hub=not quiet)
    found = checks.run(around, planned)
    failed = [finding for finding in found if finding.verdict is checks.Verdict.FAIL]
    if as_json:
        click.echo(json.dumps({"ok": not failed, "findings": [asdict(finding) for finding in found]}, indent=2))
    else:
        click.echo(table([(f.code, f.verdict.upper(), f"{f.text}{f'  -> {f.fix}' if f.fix else ''}") for f in found]))
    sys.exit(1 if failed else 0)
