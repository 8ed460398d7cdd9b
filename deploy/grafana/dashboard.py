"""Writes the Grafana dashboard: python deploy/grafana/dashboard.py > deploy/grafana/radiance.json (`make docs`).

A table of panels (panels.py) is easier to review than a thousand lines of JSON, and cannot forget a datasource, an id or a
unit. Every expression is run by a test against a real Prometheus that scraped a real exporter (tests/deploy/test_live.py).
"""

from __future__ import annotations

import json
import sys
from typing import Any

from panels import ROWS, Panel

UID = "radiance-draft-head"
SOURCE = {"type": "prometheus", "uid": "${datasource}"}
WIDTH = 24
OPTIONS: dict[str, dict[str, Any]] = {
    "timeseries": {"legend": {"displayMode": "list", "placement": "bottom"}, "tooltip": {"mode": "multi"}},
    "stat": {"reduceOptions": {"calcs": ["lastNotNull"]}},
    "heatmap": {"calculate": False, "yAxis": {"unit": "s"}, "color": {"mode": "scheme", "scheme": "Spectral"}},
    "barchart": {"orientation": "vertical", "showValue": "auto"},
    "state-timeline": {"mergeValues": True, "showValue": "never", "rowHeight": 0.9},
}


def _target(number: int, kind: str, expr: str, legend: str) -> dict[str, Any]:
    buckets = kind in ("heatmap", "barchart")
    return {
        "refId": chr(ord("A") + number),
        "datasource": SOURCE,
        "expr": expr,
        "legendFormat": legend,
        "format": "heatmap" if buckets else "time_series",  # heatmap: Grafana makes differences of cumulative buckets
        "instant": kind == "barchart",
        "range": kind != "barchart",
    }


def _panel(panel: Panel, number: int, x: int, y: int) -> dict[str, Any]:
    return {
        "id": number,
        "type": panel.kind,
        "title": panel.title,
        "description": panel.text,
        "datasource": SOURCE,
        "gridPos": {"x": x, "y": y, "w": panel.width, "h": panel.height},
        "fieldConfig": {"defaults": {"unit": panel.unit}, "overrides": []},
        "options": OPTIONS[panel.kind],
        "targets": [_target(i, panel.kind, *query) for i, query in enumerate(panel.queries)],
    }


def build() -> dict[str, Any]:
    panels: list[dict[str, Any]] = []
    y = 0
    for title, row in ROWS.items():
        place = {"x": 0, "y": y, "w": WIDTH, "h": 1}
        panels.append(
            {"id": len(panels) + 1, "type": "row", "title": title, "collapsed": False, "gridPos": place, "panels": []}
        )
        x, y = 0, y + 1
        for i, panel in enumerate(row):
            panels.append(_panel(panel, len(panels) + 1, x, y))
            x += panel.width
            if x + (row[i + 1].width if i + 1 < len(row) else WIDTH) > WIDTH:
                x, y = 0, y + panel.height
    return {
        "uid": UID,
        "title": "Radiance",
        "tags": ["radiance", "vllm"],
        "schemaVersion": 39,
        "editable": True,
        "refresh": "30s",
        "time": {"from": "now-1h", "to": "now"},
        "templating": {"list": [_source_variable(), _instance_variable()]},
        "panels": panels,
    }


def _source_variable() -> dict[str, Any]:
    return {"name": "datasource", "label": "Data source", "type": "datasource", "query": "prometheus", "refresh": 1}


def _instance_variable() -> dict[str, Any]:
    query = "label_values(radiance_build_info, instance)"
    return {
        "name": "instance",
        "label": "Server",
        "type": "query",
        "datasource": SOURCE,
        "query": {"query": query, "refId": "instance"},
        "refresh": 2,
        "multi": True,
        "includeAll": True,
        "allValue": ".*",
        "current": {"text": "All", "value": "$__all"},
    }


if __name__ == "__main__":
    json.dump(build(), sys.stdout, indent=1)
    sys.stdout.write("\n")
