"""The direction of imports: read from the syntax tree, and by running what must stay light."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
#: third-party package -> the files that may import it
ONLY_IN = {
    "vllm": {"radiance/hook/"},
    "triton": {"radiance/kernels/", "radiance/bench.py"},
    "cuda": {"radiance/kernels/"},
    "click": {"launcher/cli.py", "launcher/commands/"},
    "prometheus_client": {"launcher/exporter.py", "launcher/acceptance.py", "launcher/probe.py"},
    "torch": {"radiance/"},
}
#: package -> the module it brings, where the names differ
MODULE_OF = {"PyYAML": "yaml", "nvidia-ml-py": "pynvml", "python-json-logger": "pythonjsonlogger"}
#: run as `python -m radiance.<verb>`; they may import any of radiance, nothing imports them
VERBS = {"smollm2", "bench", "accuracy", "tune"}


def imports(path: Path) -> list[str]:
    """Absolute names imported anywhere in a file but for type checking, `from a import b` as a.b."""
    found = []
    waiting: list[ast.AST] = [ast.parse(path.read_text())]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            continue
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            found += [f"{node.module}.{alias.name}" for alias in node.names]
        waiting += ast.iter_child_nodes(node)
    return found


def unit(path: Path, package: str) -> str:
    """The module of a package that a file belongs to; a folder is one module."""
    return path.relative_to(ROOT / package).parts[0].removesuffix(".py")


def arrows(package: str) -> set[tuple[str, str, str]]:
    """(module, module it imports, the file and name) inside a package. `__version__` belongs to everybody."""
    units = {unit(path, package) for path in ROOT.glob(f"{package}/**/*.py")}
    found = set()
    for path in ROOT.glob(f"{package}/**/*.py"):
        for name in imports(path):
            parts = name.split(".")
            if parts[0] != package or parts[1:] == ["__version__"]:
                continue
            target = parts[1] if len(parts) > 1 and parts[1] in units else "__init__"
            if target != unit(path, package):
                found.add((unit(path, package), target, f"{path.relative_to(ROOT)} imports {name}"))
    return found


def picture() -> list[list[str]]:
    """The rows of modules in docs/how-it-works.md, top first."""
    page = (ROOT / "docs/how-it-works.md").read_text()
    table = page.partition("| modules | what they are |")[2].partition("\n\n")[0]
    return [re.findall(r"`(\w+)`", line.split("|")[1]) for line in table.splitlines()[2:]]


SOURCES = sorted([*ROOT.glob("radiance/**/*.py"), *ROOT.glob("launcher/**/*.py")])


@pytest.mark.parametrize("path", SOURCES, ids=lambda p: str(p.relative_to(ROOT)))
def test_imports_point_the_right_way(path: Path) -> None:
    place = str(path.relative_to(ROOT))
    for name in imports(path):
        package = name.split(".")[0]
        if package in ONLY_IN:
            assert any(place.startswith(allowed) for allowed in ONLY_IN[package]), f"{place} imports {name}"
        if place.startswith("radiance/"):
            assert package != "launcher", f"{place} imports {name}"
        if place.startswith("launcher/") and package == "radiance":
            assert name.split(".")[1] in {"settings", "status", "errors", "seams", "__version__"}, (
                f"{place} imports {name}"
            )


def test_the_launcher_declares_what_it_imports_and_nothing_else() -> None:
    """By an import, or by a dotted name in a string (logging's dictConfig). amdsmi must be that of ROCm's own tree."""
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    modules = {MODULE_OF.get(name, name) for name in (re.split(r"[^\w-]", line)[0] for line in declared)}
    files = list(ROOT.glob("launcher/**/*.py"))
    imported = {name.split(".")[0] for path in files for name in imports(path)}
    foreign = imported - set(sys.stdlib_module_names) - {"launcher", "radiance", "amdsmi"}
    assert foreign <= modules, "declare it in pyproject.toml"
    text = "".join(path.read_text() for path in files)
    assert not {name for name in modules - foreign if f'"{name}.' not in text}, "declared, but not used"


def test_every_module_of_radiance_has_its_place_in_the_picture() -> None:
    placed = [name for row in picture() for name in row]
    assert len(placed) == len(set(placed)), "a module stands in two rows"
    modules = {unit(path, "radiance") for path in ROOT.glob("radiance/**/*.py")}
    assert modules - VERBS == set(placed), "give a new module its row in docs/how-it-works.md"


def test_modules_of_radiance_import_only_from_rows_below_their_own() -> None:
    rows = {name: number for number, row in enumerate(picture()) for name in row}
    wrong = {why for module, target, why in arrows("radiance") if module not in VERBS and rows[target] <= rows[module]}
    assert not wrong


def test_nothing_imports_a_verb() -> None:
    assert not {why for module, target, why in arrows("radiance") if target in VERBS and module not in VERBS}


def test_the_launcher_does_not_import_in_a_circle() -> None:
    needs: dict[str, set[str]] = {}
    for module, target, _ in arrows("launcher"):
        needs.setdefault(module, set()).add(target)
    try:
        order = list(TopologicalSorter(needs).static_order())
    except CycleError as error:
        pytest.fail(f"launcher imports in a circle: {' <- '.join(error.args[1])}")
    assert order.index("profiles") < order.index("plan") < order.index("engine") < order.index("cli")


@pytest.mark.parametrize(
    "path", [*SOURCES, *sorted(ROOT.glob("radiance/kernels/*.cu*"))], ids=lambda p: str(p.relative_to(ROOT))
)
def test_a_long_file_says_why_at_its_top(path: Path) -> None:
    lines = path.read_text().splitlines()
    if len(lines) > 300:
        top = "\n".join(lines[:30])
        assert "NOTE: over 300 lines" in top, f"{path.name} has {len(lines)} lines: split it, or say why at its top"


@pytest.mark.parametrize(
    "code",
    [
        "import radiance; radiance.register()",
        "import launcher.cli, launcher.plan, launcher.exporter, launcher.supervise",
    ],
)
@pytest.mark.parametrize("mode", ["0", "1", "nonsense"])
def test_light_where_it_must_be_light(code: str, mode: str) -> None:
    """register() runs in every vLLM process and the launcher runs without torch: neither may load torch or vllm."""
    check = "; import sys; heavy = {'torch', 'vllm', 'triton'} & set(sys.modules); sys.exit(f'loaded {heavy}' if heavy else 0)"
    done = subprocess.run(
        [sys.executable, "-c", code + check],
        env={"PATH": "/usr/bin:/bin", "RADIANCE_FAST_DRAFT": mode, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
