"""Commands that measure: the demo, and verbs of `radiance` that need torch and so run as `python -m radiance.<verb>`."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import click

from launcher.commands.common import profile_option, profiles_dir

PASSED_ON = {"ignore_unknown_options": True, "help_option_names": []}


@click.command()
@profile_option
@profiles_dir
@click.option("--vllm", default="vllm", show_default=True, help="The vllm executable.")
def demo(profile: str, profiles_dir: Path | None, vllm: str) -> None:
    """Serve with the 2-bit head and with the stock head, compare texts and acceptance."""
    from launcher import demo as demonstration
    from launcher import profiles

    sys.exit(demonstration.run(profiles.find(profile, profiles_dir), profiles_dir, vllm, os.environ))


@click.command(context_settings=PASSED_ON)
@click.argument("options", nargs=-1, type=click.UNPROCESSED)
def accuracy(options: tuple[str, ...]) -> None:
    """Measure how well the 2-bit head of a model ranks; `radiance accuracy --help`."""
    _run_module("radiance.accuracy", options)


@click.command(context_settings=PASSED_ON)
@click.argument("options", nargs=-1, type=click.UNPROCESSED)
def tune(options: tuple[str, ...]) -> None:
    """Find the smallest r that agrees with the exact head; `radiance tune --help`."""
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
