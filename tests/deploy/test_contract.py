"""What is written about metrics elsewhere is what the exporter has: reference page, dashboard, and what is read from vLLM."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dashboard
import pytest
import yaml
from figures import Upstream, serving_engine, serving_upstream
from promql import ROOT, labels, names, ours, vllms
from tools import promtool

from launcher import exporter, metrics, scraper

GRAFANA = ROOT / "deploy" / "grafana"
BOARD: dict[str, Any] = json.loads((GRAFANA / "radiance.json").read_text())
PANELS = [panel for panel in BOARD["panels"] if panel["type"] != "row"]
TARGETS = [(panel["title"], target) for panel in PANELS for target in panel["targets"]]


@pytest.fixture
def upstream() -> Iterator[Upstream]:
    with serving_upstream() as server:
        yield server


def test_the_reference_page_is_what_the_exporter_has() -> None:
    assert (ROOT / "docs" / "metrics.md").read_text() == metrics.page(), "run `make docs`"


def test_promtool_finds_no_fault_in_the_exporters_answer(tmp_path: Path, upstream: Upstream) -> None:
    engine = serving_engine(tmp_path, upstream.port)
    engine.exit_code = 0
    scraper.Scraper(engine).once()
    done = promtool("check", "metrics", given=exporter.render(engine))
    assert done.returncode == 0, done.stdout.decode()
    assert done.stdout == b""


@pytest.mark.parametrize("page", ["README.md", "docs/operations.md"])
def test_every_metric_named_in_a_page_exists(page: str) -> None:
    found = set(re.findall(r"\bradiance_[a-z0-9_]+[a-z0-9]", (ROOT / page).read_text()))
    assert found
    assert found <= ours() | {spec.family for spec in metrics.SPECS.values()}


def test_what_is_read_from_vllm_is_in_the_vllm_that_is_installed() -> None:
    read = {*scraper.PROGRESS, scraper.RUNNING}
    counters = ("num_drafts", "num_draft_tokens", "num_accepted_tokens", "num_accepted_tokens_per_pos")
    read |= {f"vllm:spec_decode_{name}_total" for name in counters}
    assert read <= vllms()


def test_the_dashboard_is_what_its_table_says() -> None:
    assert dashboard.build() == BOARD, "run `make docs`"


def test_the_dashboard_can_be_provisioned_anywhere() -> None:
    text = json.dumps(BOARD)
    assert "__inputs" not in text
    assert "id" not in BOARD
    assert BOARD["uid"] == "radiance-draft-head"
    assert len(BOARD["uid"]) <= 40
    variables = {v["name"]: v for v in BOARD["templating"]["list"]}
    assert variables["datasource"]["type"] == "datasource"
    for thing in [variables["instance"], *PANELS, *(target for _, target in TARGETS)]:
        assert thing["datasource"]["uid"] == "${datasource}"
    names_used = set(re.findall(r"\$\{?(\w+)", text)) - {"__rate_interval", "__range", "__all"}
    assert names_used == set(variables)


def test_panels_have_ids_of_their_own_and_do_not_overlap() -> None:
    assert len({panel["id"] for panel in BOARD["panels"]}) == len(BOARD["panels"])
    taken: dict[tuple[int, int], str] = {}
    for panel in BOARD["panels"]:
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= dashboard.WIDTH
        for x in range(place["x"], place["x"] + place["w"]):
            for y in range(place["y"], place["y"] + place["h"]):
                assert (x, y) not in taken, f"{panel['title']} over {taken.get((x, y))}"
                taken[x, y] = panel["title"]
    for panel in PANELS:
        refs = [target["refId"] for target in panel["targets"]]
        assert len(set(refs)) == len(refs)


@pytest.mark.parametrize(
    ("title", "target"), TARGETS, ids=lambda value: value if isinstance(value, str) else value["refId"]
)
def test_every_name_in_the_dashboard_exists(title: str, target: dict[str, Any]) -> None:
    used = names(target["expr"])
    assert used
    assert used <= ours() | vllms()
    known = {"instance", "le", "engine", "model_name"}.union(*(spec.labels for spec in metrics.SPECS.values()))
    assert labels(target["expr"]) | set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"])) <= known


@pytest.mark.parametrize("path", sorted(GRAFANA.glob("provisioning/*/*.yml")), ids=lambda path: path.name)
def test_provisioning_files_have_the_version_that_grafana_asks_for(path: Path) -> None:
    assert yaml.safe_load(path.read_text())["apiVersion"] == 1
