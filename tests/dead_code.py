"""Functions, methods, classes and modules' names that nobody reads: python tests/dead_code.py    exit 1 if there are any

vulture finds them; variables and attributes are left out, since fields of profiles, snapshots and driver structures are read
by others. What only a test reads counts as read.
"""

from __future__ import annotations

import sys
from pathlib import Path

from vulture import Vulture

ROOT = Path(__file__).parents[1]
FOLDERS = ("radiance", "launcher", "tests", "deploy", "docs")
#: called by click, pydantic, pytest, Triton, http.server and importlib, and by vLLM's Worker
DECORATORS = ["@main.*", "@*_group.*", "@field_validator*", "@model_validator*", "@pytest.fixture*", "@triton.*"]
NAMES = ["test_*", "pytest_*", "do_*", "log_message", "__*__", "init_transfer_engine", "start_weight_update", "receive_weights",
         "reload_weights"]  # fmt: skip
KINDS = {"function", "method", "class", "property", "import", "unreachable_code"}


def found(folder: Path = ROOT) -> list[str]:
    """`file:line: what` for each, in the order of the files."""
    search = Vulture(ignore_names=NAMES, ignore_decorators=DECORATORS)
    search.scavenge([str(folder / name) for name in FOLDERS if (folder / name).is_dir()])
    return [
        f"{item.filename.relative_to(folder)}:{item.first_lineno}: {item.message}"
        for item in search.get_unused_code(min_confidence=60)
        if item.typ in KINDS
    ]


if __name__ == "__main__":
    lines = found()
    print("\n".join(lines) or "no dead code")
    sys.exit(1 if lines else 0)
