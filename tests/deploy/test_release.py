"""deploy/release.py with stand-ins for docker, helm, cosign and gh that write down how they were called."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DIGEST = "sha256:" + "a" * 64
CHART = "sha256:" + "b" * 64
#: appends its command line to `calls`, then does the little that the script reads back
STAND_IN = f"""#!{sys.executable}
import json, os, sys
name, words = os.path.basename(sys.argv[0]), sys.argv[1:]
with open(os.environ["CALLS"], "a") as calls:
    calls.write(json.dumps([name, *words]) + "\\n")
if name == os.environ.get("BROKEN"):
    sys.exit(23)
if name == "docker":
    with open(words[words.index("--metadata-file") + 1], "w") as facts:
        json.dump({{words[-1]: {{"containerimage.digest": "{DIGEST}"}}}}, facts)
if words[0] == "push":
    print("Pushed: r.example/o/charts/radiance:1.2.3", file=sys.stderr)
    print("Digest: {CHART}" if os.environ.get("BROKEN") != "digest" else "Done", file=sys.stderr)
"""


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A tree that is ready for v1.2.3."""
    (tmp_path / "deploy").mkdir()
    shutil.copy(ROOT / "deploy/release.py", tmp_path / "deploy")
    (tmp_path / "pyproject.toml").write_text('[project]\nversion = "1.2.3"\n')
    (tmp_path / "CHANGELOG.md").write_text(
        "# Changelog\n\n## Unreleased\n\n## 1.2.3 - 2026-12-01\n\n### Added\n- This.\n\n## 1.2.2 - 2026-11-01\n- That.\n"
    )
    (tmp_path / "helm").mkdir()
    (tmp_path / "helm/Chart.yaml").write_text("name: radiance\nversion: 1.2.3\nappVersion: 1.2.3\n")
    programs = tmp_path / "programs"
    programs.mkdir()
    for name in ("docker", "helm", "cosign", "gh"):
        (programs / name).write_text(STAND_IN)
        (programs / name).chmod(0o755)
    return tmp_path


def release(root: Path, *words: str, broken: str = "") -> subprocess.CompletedProcess[str]:
    environ = {**os.environ, "PATH": f"{root}/programs", "CALLS": f"{root}/calls", "BROKEN": broken}
    return subprocess.run(
        [sys.executable, "deploy/release.py", *words], cwd=root, env=environ, capture_output=True, text=True
    )


def calls(root: Path) -> list[list[str]]:
    file = root / "calls"
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


def test_the_whole_release(checkout: Path) -> None:
    for target in ("cuda", "rocm"):
        assert release(checkout, "image", "v1.2.3", target, "r.example/o").returncode == 0
    assert release(checkout, "chart", "v1.2.3", "r.example/o").returncode == 0
    done = release(checkout, "publish", "v1.2.3")
    assert done.returncode == 0, done.stderr
    made = calls(checkout)
    assert [call[:3] for call in made] == [
        ["docker", "buildx", "bake"],
        ["cosign", "sign", "--yes"],
        ["docker", "buildx", "bake"],
        ["cosign", "sign", "--yes"],
        ["helm", "package", "helm"],
        ["helm", "push", f"{checkout}/dist/radiance-1.2.3.tgz"],
        ["cosign", "sign", "--yes"],
        ["gh", "release", "create"],
    ]
    assert {"--push", "--sbom=true", "--provenance=mode=max", "cuda.tags=r.example/o/radiance:1.2.3-cuda"} <= set(
        made[0]
    )
    signed = [call[3] for call in made if call[0] == "cosign"]
    assert signed == [f"r.example/o/radiance@{DIGEST}"] * 2 + [f"r.example/o/charts/radiance@{CHART}"]
    notes = Path(made[-1][made[-1].index("--notes-file") + 1]).read_text()
    assert notes.startswith("### Added\n- This.\n")
    assert "That" not in notes
    assert all(reference in notes for reference in signed)
    assert "--prerelease" not in made[-1]


@pytest.mark.parametrize(
    ("file", "old", "new", "said"),
    [
        ("pyproject.toml", "1.2.3", "1.2.2", "pyproject.toml: version is 1.2.2, not 1.2.3"),
        ("CHANGELOG.md", "## 1.2.3 - 2026-12-01", "## 1.2.3", "no text under a heading `## 1.2.3 - YYYY-MM-DD`"),
        ("CHANGELOG.md", "### Added\n- This.\n", "", "no text under a heading"),
        (
            "CHANGELOG.md",
            "## Unreleased\n",
            "## Unreleased\n- More.\n",
            "what stands under Unreleased belongs to 1.2.3",
        ),
        ("helm/Chart.yaml", "version: 1.2.3\n", "version: 1.2.2\n", "helm/Chart.yaml: version is 1.2.2, not 1.2.3"),
        (
            "helm/Chart.yaml",
            "appVersion: 1.2.3",
            "appVersion: 1.0.0",
            "helm/Chart.yaml: appVersion is 1.0.0, not 1.2.3",
        ),
    ],
)
@pytest.mark.parametrize("step", [["check"], ["image", "cuda", "r.example/o"], ["chart", "r.example/o"], ["publish"]])
def test_nothing_is_pushed_before_all_agree_on_the_version(
    checkout: Path, file: str, old: str, new: str, said: str, step: list[str]
) -> None:
    path = checkout / file
    path.write_text(path.read_text().replace(old, new, 1))
    done = release(checkout, step[0], "v1.2.3", *step[1:])
    assert done.returncode == 1
    assert said in done.stderr
    assert calls(checkout) == []


@pytest.mark.parametrize("version", ["1.2.3", "v1.2", "main", "v1.2.3;id"])
def test_a_version_is_a_tag(checkout: Path, version: str) -> None:
    done = release(checkout, "check", version)
    assert done.returncode == 1
    assert "is not a tag like v1.2.3" in done.stderr


@pytest.mark.parametrize("broken", ["docker", "cosign"])
def test_an_image_that_was_not_signed_is_not_released(checkout: Path, broken: str) -> None:
    assert release(checkout, "image", "v1.2.3", "cuda", "r.example/o", broken=broken).returncode == 23
    assert release(checkout, "chart", "v1.2.3", "r.example/o").returncode == 0
    done = release(checkout, "publish", "v1.2.3")
    assert done.returncode == 1
    assert "no record of a signed image" in done.stderr
    assert not [call for call in calls(checkout) if call[0] == "gh"]


def test_a_chart_whose_digest_is_not_known_is_not_signed(checkout: Path) -> None:
    done = release(checkout, "chart", "v1.2.3", "r.example/o", broken="digest")
    assert done.returncode == 1
    assert "told no digest" in done.stderr
    assert not [call for call in calls(checkout) if call[0] == "cosign"]


def test_an_empty_registry_is_named(checkout: Path) -> None:
    done = release(checkout, "image", "v1.2.3", "cuda", "")
    assert done.returncode == 2
    assert "REGISTRY must not be empty" in done.stderr


def test_a_release_candidate_is_a_prerelease(checkout: Path) -> None:
    for path in ("pyproject.toml", "CHANGELOG.md", "helm/Chart.yaml"):
        file = checkout / path
        file.write_text(file.read_text().replace("1.2.3", "1.2.3-rc.1"))
    assert release(checkout, "image", "v1.2.3-rc.1", "cuda", "r.example/o").returncode == 0
    assert release(checkout, "chart", "v1.2.3-rc.1", "r.example/o").returncode == 0
    done = release(checkout, "publish", "v1.2.3-rc.1")
    assert done.returncode == 0, done.stderr
    assert "--prerelease" in calls(checkout)[-1]
