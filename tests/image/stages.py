"""The Dockerfile as values: its stages, what each runs, and what a target ends up with."""

from __future__ import annotations

import shlex
from dataclasses import dataclass, field
from pathlib import Path

from dockerfile_parse import DockerfileParser

ROOT = Path(__file__).parents[2]
TARGETS = ("cpu", "rocm", "cuda")


@dataclass
class Stage:
    """One FROM and what follows. `base` is an image or the name of an earlier stage."""

    name: str
    base: str
    #: (instruction in capitals, its value with line continuations joined)
    steps: list[tuple[str, str]] = field(default_factory=list)

    def all(self, instruction: str) -> list[str]:
        return [value for name, value in self.steps if name == instruction]


def text() -> str:
    return (ROOT / "Dockerfile").read_text()


def arguments() -> dict[str, str]:
    """ARGs before the first FROM, with their defaults."""
    found = {}
    for step in _structure():
        if step["instruction"] == "FROM":
            break
        if step["instruction"] == "ARG":
            name, _, value = step["value"].partition("=")
            found[name] = value
    return found


def stages() -> dict[str, Stage]:
    """By name, in the order of the file."""
    found: dict[str, Stage] = {}
    for step in _structure():
        if step["instruction"] == "FROM":
            base, _, name = step["value"].partition(" AS ")
            found[name] = Stage(name, base)
        elif found and step["instruction"] != "COMMENT":
            list(found.values())[-1].steps.append((step["instruction"], step["value"]))
    return found


def lineage(target: str) -> list[Stage]:
    """The stages a target is made of, the first one first."""
    every = stages()
    chain = [every[target]]
    while chain[0].base in every:
        chain.insert(0, every[chain[0].base])
    return chain


def merged(target: str) -> Stage:
    """All steps of a target, as the engine carries them out."""
    chain = lineage(target)
    return Stage(target, chain[0].base, [step for stage in chain for step in stage.steps])


def pairs(values: list[str]) -> dict[str, str]:
    """ENV or LABEL values -> a mapping, later ones winning."""
    found = {}
    for value in values:
        for word in shlex.split(value):
            name, _, content = word.partition("=")
            found[name] = content
    return found


def _structure() -> list[dict[str, str]]:
    parser = DockerfileParser(fileobj=(ROOT / "Dockerfile").open("rb"), env_replace=False)
    return list(parser.structure)
