"""The workflows hold to CONTRIBUTING: pinned actions, no permission by default, and nothing but `make` does the work."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parent.parent
WORKFLOWS = sorted((ROOT / ".github/workflows").glob("*.yml"))
MAKEFILE = (ROOT / "Makefile").read_text()
VERBS = set(re.findall(r"^([a-z0-9-]+):.*## ", MAKEFILE, re.M))
each_workflow = pytest.mark.parametrize("path", WORKFLOWS, ids=lambda p: p.stem)
#: what a step may run besides `make`: readying the rented machine. Nobody needs it on a laptop.
MACHINE = ("sudo rm -rf ", "docker login ")


def loaded(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load(path.read_text())
    return found


def steps(path: Path) -> list[dict[str, Any]]:
    return [step for job in loaded(path)["jobs"].values() for step in job.get("steps", [])]


def test_every_workflow_is_there() -> None:
    assert {path.stem for path in WORKFLOWS} == {"check", "e2e", "image", "chart", "compat", "gpu", "release"}


@each_workflow
def test_nothing_is_allowed_that_a_job_does_not_ask_for(path: Path) -> None:
    workflow = loaded(path)
    assert workflow["permissions"] == {}
    assert workflow["concurrency"]["group"]
    for name, job in workflow["jobs"].items():
        assert "permissions" in job, f"{name} does not say its permissions"
        assert job["timeout-minutes"] <= 120, f"{name} may run for {job['timeout-minutes']} minutes"
        assert job["runs-on"] != "ubuntu-latest", f"{name}: name the version, so that a new one comes in a commit"


@each_workflow
def test_actions_are_pinned_by_commit_and_say_their_version(path: Path) -> None:
    for line in re.findall(r"uses: (.*)", path.read_text()):
        assert re.fullmatch(r"[\w.-]+/[\w./-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+", line), line


def test_an_action_has_one_version_everywhere() -> None:
    pins: dict[str, set[str]] = {}
    for path in WORKFLOWS:
        for action, pin in re.findall(r"uses: ([^@\s]+)@(.*)", path.read_text()):
            pins.setdefault(action, set()).add(pin)
    assert pins
    assert all(len(found) == 1 for found in pins.values()), pins


@each_workflow
def test_a_checkout_leaves_no_token_behind(path: Path) -> None:
    for step in steps(path):
        if step.get("uses", "").startswith("actions/checkout@"):
            assert step["with"]["persist-credentials"] is False


@each_workflow
def test_steps_run_make(path: Path) -> None:
    ran = set()
    for step in steps(path):
        for line in filter(None, map(str.strip, step.get("run", "").replace("\\\n", " ").splitlines())):
            if line.startswith(MACHINE):
                continue
            found = re.match(r"(?:sudo (?:env (?:\"[^\"]*\" )*)?)?make (.*)", line)
            assert found, f"{path.name} runs `{line}`: make it a verb"
            words = found[1].split()
            verbs = {word for word in words if "=" not in word and not word.startswith("$")}
            assert verbs <= VERBS, f"{path.name}: no such verbs: {sorted(verbs - VERBS)}"
            ran |= verbs
    assert ran, f"{path.name} runs no verb"


@each_workflow
def test_no_input_of_others_reaches_a_shell(path: Path) -> None:
    """Not even a ref name: a value goes through `env`, where it is data."""
    for step in steps(path):
        assert "${{" not in step.get("run", ""), step["run"]


def tools(text: str, start: str) -> set[str]:
    return set(re.findall(rf"{re.escape(start)}([a-z-]+)", text))


def test_pre_commit_runs_the_tools_of_make_check() -> None:
    recipe = re.search(r"^check:.*?\n\n", MAKEFILE, re.M | re.S)
    assert recipe
    checked = tools(recipe[0], "$(BIN)/")
    hooks = [hook for repo in loaded(ROOT / ".pre-commit-config.yaml")["repos"] for hook in repo["hooks"]]
    assert {hook["entry"].split()[0] for hook in hooks} == {f".venv/bin/{tool}" for tool in checked}


def test_every_linter_is_pinned_by_hash() -> None:
    lines = [line for line in (ROOT / "deploy/cpu/lint.txt").read_text().splitlines() if not line.startswith("#")]
    assert lines
    for line in lines:
        assert re.fullmatch(r"[\w.-]+==[\w.]+( --hash=sha256:[0-9a-f]{64})+", line), line


def test_make_lists_its_verbs() -> None:
    phony = re.search(r"^\.PHONY: (.*)$", MAKEFILE, re.M)
    assert phony
    assert set(phony[1].split()) == VERBS, "a verb without `## what it does`, or missing in .PHONY"


def test_the_ci_budget_names_what_ci_runs() -> None:
    ran = {word for line in re.findall(r"^make (.*)$", (ROOT / ".ci/run").read_text(), re.M) for word in line.split()}
    budget = (ROOT / "CONTRIBUTING.md").read_text().partition("| verb | minutes |")[2].partition("\n\n")[0]
    named = {word for cell in re.findall(r"`make ([^`]*)`", budget) for word in cell.split()}
    assert ran
    assert ran <= named, f"CONTRIBUTING.md, CI: minutes of {sorted(ran - named)}"
    assert sum(float(minutes) for minutes in re.findall(r"\| *([\d.]+) *\|$", budget, re.M)) < 60
