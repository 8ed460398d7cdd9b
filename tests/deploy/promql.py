"""Which metrics a PromQL expression names, and which exist. No grammar: whether it parses is Prometheus' own to say."""

from __future__ import annotations

import ast
import importlib.util
import re
from pathlib import Path
from typing import Any

import yaml

from launcher.metrics import SPECS

ROOT = Path(__file__).parents[2]
RULES = [ROOT / "deploy" / "prometheus" / name for name in ("recording.yml", "alerts.yml")]
WORDS = {
    "and",
    "or",
    "unless",
    "bool",
    "offset",
    "by",
    "without",
    "on",
    "ignoring",
    "group_left",
    "group_right",
    "inf",
    "nan",
}
_NAME = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*")


def names(expr: str) -> set[str]:
    """Every identifier that is neither a function, a keyword, a label nor a duration."""
    text = re.sub(r'"(\\.|[^"\\])*"|\'(\\.|[^\'\\])*\'', "", expr)
    text = re.sub(r"\{[^}]*\}|\[[^\]]*\]", " ", text)
    text = re.sub(r"\b(by|without|on|ignoring|group_left|group_right)\s*\([^)]*\)", " ", text)
    found = set()
    for match in _NAME.finditer(text):
        before, after = text[: match.start()][-1:], text[match.end() :].lstrip()[:1]
        if before.isdigit() or before == "." or after == "(" or match[0].lower() in WORDS:
            continue
        if re.match(r"\s+(by|without)\b", text[match.end() :]):
            continue
        found.add(match[0])
    return found


def labels(expr: str) -> set[str]:
    """Label names in selectors and in by, without, on, ignoring."""
    inside = re.findall(r"\{([^}]*)\}", expr)
    found = {name for text in inside for name in re.findall(r"([a-zA-Z_]\w*)\s*(?:=~|!~|!=|=)", text)}
    lists = re.findall(r"\b(?:by|without|on|ignoring)\s*\(([^)]*)\)", expr)
    return found | {name.strip() for text in lists for name in text.split(",") if name.strip()}


def rules() -> list[dict[str, Any]]:
    return [rule for path in RULES for group in yaml.safe_load(path.read_text())["groups"] for rule in group["rules"]]


def _expand(name: str, kind: str) -> set[str]:
    if kind == "counter":
        return {name if name.endswith("_total") else f"{name}_total"}
    return {f"{name}_bucket", f"{name}_sum", f"{name}_count"} if kind == "histogram" else {name}


def ours() -> set[str]:
    return set().union(*(_expand(spec.family, spec.kind) for spec in SPECS.values()))


def vllms() -> set[str]:
    """Names in the source of the vLLM that is installed. It is read, not imported, which would take half a minute."""
    spec = importlib.util.find_spec("vllm")
    assert spec is not None, "vllm is not installed; `make venv` does it"
    assert spec.origin is not None
    folder, found = Path(spec.origin).parent / "v1", set()
    for path in (folder / "metrics" / "loggers.py", folder / "spec_decode" / "metrics.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call):
                kind = re.search(r"counter|gauge|histogram", ast.unparse(node.func))
                for keyword in node.keywords:
                    value = keyword.value
                    if (
                        kind
                        and keyword.arg == "name"
                        and isinstance(value, ast.Constant)
                        and isinstance(value.value, str)
                    ):
                        found |= _expand(value.value, kind[0])
            elif isinstance(node, ast.Tuple) and node.elts and isinstance(node.elts[0], ast.Constant):
                name = node.elts[0].value
                found |= _expand(name, "counter") if isinstance(name, str) and name.startswith("vllm:") else set()
    return found
