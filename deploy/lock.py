"""Write a lock file: the exact wheels, with hashes, that pip would install here for a list of requirements.

    python deploy/lock.py REQUIREMENTS.txt > REQUIREMENTS.lock

For this Python and this machine's platform, so: CPython 3.11 on Linux x86-64, as in the image. One hash a package, not one
for every wheel the index has, so that a person can read a change. Two lines of the requirements speak to this program:
`#: and what the launcher needs` adds the dependencies in pyproject.toml, `#: leave out NAME ...` names packages that are
resolved but not written.
"""

from __future__ import annotations

import hashlib
import json
import re
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

PROJECT = Path(__file__).parents[1] / "pyproject.toml"


def main(source: Path) -> None:
    text = source.read_text()
    left_out = {name for line in re.findall(r"^#: leave out (.+)$", text, re.M) for name in line.split()}
    more = []
    if "\n#: and what the launcher needs\n" in text:
        more = tomllib.loads(PROJECT.read_text())["project"]["dependencies"]
    print(f"# Made by deploy/lock.py from {source.name}; do not edit.")
    for name, version, digest in sorted(resolve(source, more)):
        if name not in left_out:
            print(f"{name}=={version} --hash=sha256:{digest}")


def resolve(source: Path, more: list[str]) -> list[tuple[str, str, str]]:
    """(name, version, sha256) of everything pip would install. Raises CalledProcessError if it cannot."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.json"
        subprocess.run(
            [sys.executable, "-m", "pip", "install", "--quiet", "--dry-run", "--ignore-installed",
             "--only-binary=:all:", "--report", str(report), "-r", str(source), *more],
            check=True,
        )  # fmt: skip
        return [_entry(item) for item in json.loads(report.read_text())["install"]]


def _entry(item: dict[str, Any]) -> tuple[str, str, str]:
    name = re.sub(r"[-_.]+", "-", item["metadata"]["name"]).lower()
    found = item["download_info"]
    digest = found["archive_info"].get("hashes", {}).get("sha256")
    if digest is None:  # a file of this machine: pip does not hash it
        digest = hashlib.sha256(Path(unquote(urlsplit(found["url"]).path)).read_bytes()).hexdigest()
    return name, item["metadata"]["version"], digest


if __name__ == "__main__":
    main(Path(sys.argv[1]))
