"""Documentation that cannot rot unseen: links lead somewhere, commands parse, reference pages are what the code says."""

from __future__ import annotations

import re
import runpy
import shlex
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace

import click
import pytest
import yaml

from launcher import profiles
from launcher.cli import main
from launcher.options import Options
from launcher.owned import FIELDS

ROOT = Path(__file__).parent.parent
PATTERNS = ("*.md", ".github/*.md", "docs/*.md", "helm/*.md", "tests/**/README.md")
PAGES = sorted(page for pattern in PATTERNS for page in ROOT.glob(pattern))
COMMANDS = ("radiance ", "make ", "docker run ", "helm ")
each_page = pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))


#: docs/reference.py is a script, not a module of a package
reference = SimpleNamespace(**runpy.run_path(str(ROOT / "docs/reference.py")))


def anchor(heading: str) -> str:
    return re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-")


def blocks(page: Path) -> list[str]:
    """The lines of a page's code blocks, continued lines joined, comments gone."""
    text = "\n".join(re.findall(r"^```[a-z]*\n(.*?)^```", page.read_text(), re.M | re.S)).replace("\\\n", " ")
    return [" ".join(shlex.split(line, comments=True)) for line in text.splitlines() if line.startswith(COMMANDS)]


def parse(words: list[str]) -> None:
    """Let click read `radiance WORDS` down to the last sub-command, without running it. Raises UsageError."""
    command: click.Command = main
    name, above = "radiance", None
    while True:
        context = command.make_context(name, list(words), parent=above)
        if command.name in reference.MODULES:
            reference.module_parser(command.name).parse_args(words)
        if not isinstance(command, click.Group):
            return
        found, child, words = command.resolve_command(context, [*context._protected_args, *context.args])
        assert found
        assert child
        name, command, above = found, child, context


def test_docker_waits_longer_for_a_gpu_server_than_the_launcher_does() -> None:
    """Docker kills after 10 s; a running request then ends in the middle."""
    lines = [line for page in PAGES for line in blocks(page) if line.startswith("docker run") and "--shm-size" in line]
    assert len(lines) >= 3
    for line in lines:
        words = line.split()
        assert int(words[words.index("--stop-timeout") + 1]) >= Options().grace_seconds + 15, line


def test_the_runbook_names_fields_where_args_are_refused() -> None:
    text = (ROOT / "docs/operations.md").read_text()
    assert not [flag for flag in FIELDS if "-" in flag and f"`{flag}`" in text]


@pytest.mark.parametrize("name", reference.PAGES)
def test_reference_pages_are_what_the_code_says(name: str) -> None:
    assert (ROOT / f"docs/{name}.md").read_text() == reference.PAGES[name](), f"run `make docs`: docs/{name}.md is old"


def test_the_figures_of_the_pages_are_those_that_were_measured() -> None:
    figures = runpy.run_path(str(ROOT / "docs/figures.py"))
    texts = [page.read_text() for page in figures["PAGES"]]
    assert set(re.findall(r"<!-- figures: ([a-z]+) -->", "".join(texts))) == set(figures["FIGURES"])
    for page, text in zip(figures["PAGES"], texts, strict=True):
        assert text == figures["fill"](text), f"run `make docs`: {page.name} has other figures than tests/bench/results"


@each_page
def test_links_lead_somewhere(page: Path) -> None:
    text = re.sub(r"`[^`\n]*`", "", page.read_text())  # a pattern in a code span is no link
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if target.startswith(("http://", "https://", "mailto:")):
            continue
        name, _, part = target.partition("#")
        found = (page.parent / name).resolve() if name else page
        assert found.exists(), f"{page.name} links to {target}"
        assert found.is_relative_to(ROOT), f"{page.name} links to {target}, outside of the repository"
        if part:
            headings = re.findall(r"^#+ (.*)$", found.read_text(), re.M)
            assert part in [anchor(h) for h in headings], f"{page.name} links to {target}"


@each_page
def test_every_page_is_reachable(page: Path) -> None:
    """A page of docs/ that nothing links to is read by nobody."""
    if page.parent.name == "docs":
        others = [other.read_text() for other in PAGES if other != page]
        assert any(re.search(rf"\]\((docs/|\.\./docs/)?{re.escape(page.name)}[)#]", text) for text in others)


@each_page
def test_make_verbs_exist(page: Path) -> None:
    makefile = (ROOT / "Makefile").read_text()
    verbs = set(re.findall(r"^([a-z0-9-]+):.*## ", makefile, re.M))
    text = page.read_text()
    lines = [
        *re.findall(r"`make ([^`]+)`", text),
        *(line.removeprefix("make ") for line in blocks(page) if line[:5] == "make "),
    ]
    for line in lines:
        words = [word for word in re.sub(r"&&.*|\.\.\.", "", line).split() if not word.startswith("-")]
        named = {word.rstrip(",") for word in words if "=" not in word}
        assert named <= verbs, f"{page.name} names make verbs that do not exist: {sorted(named - verbs)}"
        given = {word.partition("=")[0] for word in words if "=" in word}
        assert all(re.search(rf"\b{name}\b", makefile) for name in given), f"{page.name}: make reads no {given}"


@each_page
def test_commands_parse(page: Path) -> None:
    for line in blocks(page):
        if line.startswith(("make ", "helm ")):
            continue
        words = shlex.split(re.split(r" [|>&]|;", line)[0])[1:]
        if line.startswith("docker "):  # what follows the image's name is for the launcher
            image = [number for number, word in enumerate(words) if re.search(r"^IMAGE$|(^|/)radiance([:@]|$)", word)]
            assert image, f"{page.name}: `{line}` names no image"
            words = words[image[0] + 1 :]
        if any(word.startswith("[") or word in ("COMMAND", "OPTIONS") for word in words):
            continue  # a usage line of the reference
        try:
            parse(words)
        except click.exceptions.Exit:
            pass  # --help
        except (click.UsageError, SystemExit) as error:
            if getattr(error, "code", 1) != 0:
                pytest.fail(f"{page.name}: `{line}`: {error}")
        for option, name in pairwise(words):
            if option == "--profile" and not name.isupper():
                assert name in profiles.entries(None), f"{page.name}: `{line}` names no profile of the catalogue"


@each_page
def test_chart_values_exist(page: Path) -> None:
    """`helm ... --set a.b=c` sets a value that the chart has; a profile in it is one of the catalogue."""
    values = yaml.safe_load((ROOT / "helm/values.yaml").read_text())
    for line in blocks(page):
        words = line.split() if line.startswith("helm ") else []
        for option, setting in pairwise(words):
            if option not in ("--set", "--set-string"):
                continue
            for part in setting.split(","):
                key, _, value = part.partition("=")
                found = values
                for name in key.split("."):
                    assert name in found, f"{page.name}: the chart has no value {key}"
                    found = found[name]
                if key == "profile" and not value.isupper():
                    assert value in profiles.entries(None), f"{page.name}: `{line}` names no profile of the catalogue"


@each_page
def test_commands_named_in_prose_exist(page: Path) -> None:
    for named in re.findall(r"`radiance ([a-z][a-z -]*?)(?= [^a-z]|`)", page.read_text()):
        command: click.Command = main
        for word in named.split():
            if not isinstance(command, click.Group):
                break
            assert word in command.commands, f"{page.name} names `radiance {named}`"
            command = command.commands[word]
