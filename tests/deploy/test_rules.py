"""Recording rules and alerts: what promtool says, and what it cannot know (our names, our runbook)."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from promql import ROOT, RULES, labels, names, ours, rules, vllms
from tools import promtool

from launcher.metrics import SPECS

FOLDER = ROOT / "deploy" / "prometheus"
CASES = FOLDER / "alerts_test.yml"
ALERTS = [rule for rule in rules() if "alert" in rule]
RECORDED = {rule["record"] for rule in rules() if "record" in rule}
#: what Prometheus adds to every series of a target
TARGET = {"job", "instance"}
each_alert = pytest.mark.parametrize("alert", ALERTS, ids=lambda alert: alert["alert"])


def anchors(page: Path) -> set[str]:
    """As web pages of repositories make them from headings."""
    titles = re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize(
    "arguments",
    [("check", "config", FOLDER / "prometheus.yml"), ("check", "rules", *RULES), ("test", "rules", CASES)],
    ids=lambda arguments: " ".join(map(str, arguments[:2])),
)
def test_promtool_finds_no_fault(arguments: tuple[str | Path, ...]) -> None:
    done = promtool(*arguments)
    assert done.returncode == 0, done.stdout.decode()


def test_a_rule_that_never_fires_is_noticed(tmp_path: Path) -> None:
    """The cases themselves are tested: with any alert's expression made false they must fail."""
    for path in (*RULES, CASES):
        (tmp_path / path.name).write_text(path.read_text())
    quiet = yaml.safe_load((FOLDER / "alerts.yml").read_text())
    for rule in quiet["groups"][0]["rules"]:
        rule["expr"] = f"({rule['expr']}) > 1e300"
    (tmp_path / "alerts.yml").write_text(yaml.safe_dump(quiet))
    done = promtool("test", "rules", tmp_path / CASES.name)
    assert done.returncode != 0
    missed = {alert["alert"] for alert in ALERTS if f"alertname: {alert['alert']}," in done.stdout.decode()}
    assert missed == {alert["alert"] for alert in ALERTS}


@each_alert
def test_every_alert_has_a_case_that_fires_and_one_that_does_not(alert: dict[str, Any]) -> None:
    tests = yaml.safe_load(CASES.read_text())["tests"]
    checks = [c for test in tests for c in test.get("alert_rule_test", []) if c["alertname"] == alert["alert"]]
    assert {bool(check["exp_alerts"]) for check in checks} == {True, False}


@each_alert
def test_an_alert_says_how_bad_what_and_where_to_read_on(alert: dict[str, Any]) -> None:
    name = alert["alert"]
    assert re.fullmatch(r"Radiance([A-Z][a-z]+)+", name)
    assert alert["labels"]["severity"] in {"critical", "warning"}
    notes = alert["annotations"]
    assert set(notes) == {"summary", "description", "runbook_url"}
    assert "{{" not in notes["summary"], "the summary is what alerts of one kind are grouped by"
    page, _, anchor = notes["runbook_url"].partition("#")
    assert anchor == name.lower()
    assert anchor in anchors(ROOT / page)


def test_every_runbook_section_belongs_to_an_alert() -> None:
    sections = re.findall(r"^### (Radiance\w+)$", (ROOT / "docs" / "operations.md").read_text(), re.MULTILINE)
    assert sorted(sections) == sorted(alert["alert"] for alert in ALERTS)


@pytest.mark.parametrize("rule", rules(), ids=lambda rule: rule.get("alert") or rule["record"])
def test_every_name_in_a_rule_exists(rule: dict[str, Any]) -> None:
    used = names(rule["expr"])
    assert used
    assert used <= ours() | RECORDED | vllms() | {"up"}
    known = TARGET.union(*(spec.labels for spec in SPECS.values()))
    assert labels(rule["expr"]) <= known


def test_names_are_found_in_an_expression() -> None:
    """The check above is worth nothing if it looks past a name."""
    expr = 'sum without (a, b) (rate(x_total{y="z w"}[5m])) / (sum by (c) (d) > 0) and ignoring (e) time() - f:g:h > 1e3 or i'
    assert names(expr) == {"x_total", "d", "f:g:h", "i"}
    assert labels(expr) == {"a", "b", "y", "c", "e"}


def test_the_job_of_the_scrape_config_is_the_one_the_alerts_ask_for() -> None:
    jobs = {job["job_name"] for job in yaml.safe_load((FOLDER / "prometheus.yml").read_text())["scrape_configs"]}
    asked = {job for rule in rules() for job in re.findall(r'job="([^"]*)"', rule["expr"])}
    assert asked
    assert asked <= jobs
