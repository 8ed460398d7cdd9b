"""Commands that measure: demo and compare, and verbs of `radiance` that need torch and so run as `python -m radiance.<verb>`."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import click

from launcher.commands.common import json_option, profile_option, profiles_dir, set_option
from launcher.errors import UsageProblem

PASSED_ON = {"ignore_unknown_options": True, "help_option_names": []}


@click.command()
@profile_option
@profiles_dir
@click.option("--vllm", default="vllm", show_default=True, help="The vllm executable.")
def demo(profile: str, profiles_dir: Path | None, vllm: str) -> None:
    """Serve with the 2-bit head and with the stock head, compare texts and acceptance."""
    from launcher import demo as demonstration
    from launcher import profiles
    from launcher.secrets import resolve

    sys.exit(demonstration.run(profiles.find(profile, profiles_dir), profiles_dir, vllm, resolve(os.environ)))


@click.command()
@profile_option
@profiles_dir
@set_option
@click.option("--vllm", default="vllm", show_default=True, help="The vllm executable.")
@click.option("--modes", default="off,on,shadow", show_default=True, help="Which of off, on and shadow, in this order.")
@click.option(
    "--prompts",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="File, a prompt a line.  [default: 24 questions]",
)
@click.option("--max-tokens", default=112, show_default=True, type=click.IntRange(1), help="Of each answer.")
@click.option("--at-once", default=8, show_default=True, type=click.IntRange(1), help="Requests in flight.")
@click.option("--repeat", default=1, show_default=True, type=click.IntRange(1), help="All prompts so many times.")
@json_option
def compare(
    profile: str, profiles_dir: Path | None, sets: tuple[str, ...], vllm: str, modes: str, prompts: Path | None,
    max_tokens: int, at_once: int, repeat: int, as_json: bool,
) -> None:  # fmt: skip
    """Serve the profile with the draft head off, on and in shadow; speed, acceptance, latency and output side by side.

    Exit 1 when a head was not as asked or drafts were too few to compare.
    """
    from launcher import compare as comparing
    from launcher import plan, profiles
    from launcher.options import Options
    from launcher.secrets import resolve
    from radiance.settings import Mode

    names = {mode.name.lower(): mode for mode in Mode}
    words = [word.strip() for word in modes.split(",") if word.strip()]
    if not words or set(words) - set(names):
        raise UsageProblem(f"--modes takes some of {', '.join(names)}, separated by commas, not {modes!r}")
    if any(text.startswith("fast_draft") for text in sets):
        raise UsageProblem("--set fast_draft would be the same in every mode; choose with --modes")
    environ = resolve(os.environ)
    settled = plan.build(profiles.stack(profile, profiles_dir), Options(sets=sets), environ).settled.profile
    if settled.speculative is None:
        raise UsageProblem(f"profile {profile!r} does not speculate: there is no draft head to compare")
    options = ["--vllm", vllm, *(word for text in sets for word in ("--set", text))]
    if profiles_dir:
        options += ["--profiles-dir", str(profiles_dir)]
    asked = comparing.Asked(tuple(names[word] for word in words), prompts, max_tokens, at_once, repeat)
    trials = comparing.run(settled, options, asked, environ, lambda line: click.echo(line, err=True))
    click.echo(comparing.to_json(settled, asked, trials) if as_json else comparing.to_text(trials))
    for fault in (found := comparing.faults(trials)):
        click.echo(f"FAILED: {fault}", err=True)
    sys.exit(1 if found else 0)


@click.command(context_settings=PASSED_ON)
@click.argument("options", nargs=-1, type=click.UNPROCESSED)
def accuracy(options: tuple[str, ...]) -> None:
    """Measure how well the 2-bit head of a model ranks; `radiance accuracy --help`."""
    _run_module("radiance.accuracy", options)


@click.command(context_settings=PASSED_ON)
@click.argument("options", nargs=-1, type=click.UNPROCESSED)
def tune(options: tuple[str, ...]) -> None:
    """Measure the fastest launches on this GPU, or the smallest r that agrees; `radiance tune --help`."""
    _run_module("radiance.tune", options)


@click.command(context_settings=PASSED_ON)
@click.argument("options", nargs=-1, type=click.UNPROCESSED)
def bench(options: tuple[str, ...]) -> None:
    """Time the draft head on the GPU at hand, beside the stock head; `radiance bench head --help`."""
    _run_module("radiance.bench", options)


@click.command(context_settings=PASSED_ON)
@click.argument("options", nargs=-1, type=click.UNPROCESSED)
def vocab(options: tuple[str, ...]) -> None:
    """Build a draft vocabulary from your own text; `radiance vocab build --help`."""
    _run_module("radiance.vocab", options)


def _run_module(name: str, options: tuple[str, ...]) -> None:
    """Become `python -m name`: it needs torch, which this process must not load. Exit code and signals are its own."""
    sys.stdout.flush()
    os.execv(sys.executable, [sys.executable, "-m", name, *options])
