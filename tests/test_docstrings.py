"""A public function that takes or gives tensors says what they are: shapes in brackets, as in fp32 [m, k]."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
#: says the shapes by naming a function that has the same, or the tensors may be of any shape
BY_REFERENCE = {
    "measure.stock_head",
    "rivals.fp8",
    "build.pointer",
    "coarse.checked",
    "coarse.run",
    "coarse_triton.run",
    "recall.errors",
    "rerank.rerank_kernel",
    "rerank_triton.score",
    "schemes.asymmetric",
    "schemes.quarter",
    "schemes.fragment",
    "schemes.rotated",
    "schemes.scaled",
    "schemes.shipped",
    "schemes.symmetric",
    "source.Source.sample",
}


def public(node: ast.Module | ast.ClassDef, owner: str) -> Iterator[tuple[str, ast.FunctionDef]]:
    for child in node.body:
        if isinstance(child, ast.ClassDef) and not child.name.startswith("_"):
            yield from public(child, f"{owner}.{child.name}")
        elif isinstance(child, ast.FunctionDef) and not child.name.startswith("_"):
            yield f"{owner}.{child.name}", child


def with_tensors() -> Iterator[tuple[str, str]]:
    """(module.function, docstring) of every public function of radiance with a tensor in its signature."""
    for path in sorted(ROOT.glob("radiance/**/*.py")):
        for name, function in public(ast.parse(path.read_text()), path.stem):
            written = [a.annotation for a in [*function.args.args, *function.args.kwonlyargs]] + [function.returns]
            if any("Tensor" in ast.unparse(annotation) for annotation in written if annotation):
                yield name, ast.get_docstring(function) or ""


@pytest.mark.parametrize(
    ("name", "text"), list(with_tensors()), ids=lambda v: v if "\n" not in v and " " not in v else ""
)
def test_says_its_shapes(name: str, text: str) -> None:
    assert text, f"{name} has no docstring"
    if name not in BY_REFERENCE:
        assert "[" in text, f"{name}: give the shapes of its tensors, as in fp32 [m, k]"


def test_the_exceptions_exist() -> None:
    assert {name for name, text in with_tensors() if "[" in text or not text}.isdisjoint(BY_REFERENCE)
    assert {name for name, _ in with_tensors()} >= BY_REFERENCE
