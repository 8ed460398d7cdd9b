"""Documentation that cannot rot unseen: links lead somewhere, tables name what the code has, commands exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from click.testing import CliRunner

from launcher.cli import main
from radiance import settings

ROOT = Path(__file__).parent.parent
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")])


def anchor(heading: str) -> str:
    return re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-")


@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text()):
        if target.startswith(("http://", "https://", "mailto:")):
            continue
        name, _, part = target.partition("#")
        found = (page.parent / name).resolve() if name else page
        assert found.exists(), f"{page.name} links to {target}"
        if part:
            headings = re.findall(r"^#+ (.*)$", found.read_text(), re.M)
            assert part in [anchor(h) for h in headings], f"{page.name} links to {target}"


def test_readme_names_every_setting() -> None:
    rows = re.findall(r"^\| `(RADIANCE_[A-Z_]+)` \|", (ROOT / "README.md").read_text(), re.M)
    assert sorted(rows) == sorted(settings.VARIABLES)


@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_make_verbs_exist(page: Path) -> None:
    verbs = set(re.findall(r"^([a-z0-9-]+):.*## ", (ROOT / "Makefile").read_text(), re.M))
    text = page.read_text()
    named = set(re.findall(r"`make ([a-z0-9-]+)", text)) | set(re.findall(r"^make ([a-z0-9-]+)", text, re.M))
    assert named <= verbs, f"{page.name} names make verbs that do not exist: {sorted(named - verbs)}"


def test_commands_of_the_readme_exist() -> None:
    named = set(re.findall(r"^radiance ([a-z]+)", (ROOT / "README.md").read_text(), re.M))
    assert len(named) >= 6
    for verb in named:
        assert verb in main.commands, f"README names `radiance {verb}`"
        if verb not in ("accuracy", "tune", "vocab", "bench"):  # these become `python -m radiance.<verb>`
            assert CliRunner().invoke(main, [verb, "--help"]).exit_code == 0
