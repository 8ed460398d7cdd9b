"""Metrics that the chart's autoscaling asks for are in the vLLM that is installed. Over the recorded renders: no Helm is needed."""

from __future__ import annotations

import yaml
from promql import ROOT, names, ours, vllms

RENDERS = ROOT / "tests" / "chart" / "golden"


def test_every_name_in_a_query_of_the_chart_exists() -> None:
    asked = set()
    for path in sorted(RENDERS.glob("*.yaml")):
        for item in yaml.safe_load_all(path.read_text()):
            if item["kind"] == "ScaledObject":
                asked |= set().union(*(names(trigger["metadata"]["query"]) for trigger in item["spec"]["triggers"]))
    assert asked
    assert asked <= ours() | vllms()
