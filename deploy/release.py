"""What a release does, step by step, each a make verb (CONTRIBUTING.md, Releasing):

    python deploy/release.py check VERSION                      everything that names a version names this one
    python deploy/release.py image VERSION TARGET REGISTRY      build, push, sign one image; dist/image-TARGET.ref is what was signed
    python deploy/release.py chart VERSION REGISTRY             package, push, sign the chart; dist/chart.ref
    python deploy/release.py publish VERSION                    a release page with the changelog's section and what was signed

What is signed is always a digest, never a tag: a tag can move between the push and the signature.
Needs docker with buildx, helm, cosign and gh, as the steps say; a command that fails ends the step with its exit code. Standard
library only: a release needs no environment of ours.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).parents[1]
NAME = "radiance"


class Refused(Exception):
    """The release must not go on; the message says what to change."""


def number(version: str) -> str:
    """v1.2.3 -> 1.2.3, also with -rc.1 and its like. Raises Refused."""
    if not (found := re.fullmatch(r"v(\d+\.\d+\.\d+(-[0-9a-z.]+)?)", version)):
        raise Refused(f"VERSION={version!r} is not a tag like v1.2.3")
    return found[1]


def section(changelog: str, title: str) -> str | None:
    """The text below a `## title` of the changelog; None if there is no such heading."""
    found = re.search(rf"^## {title}[^\n]*\n(.*?)(?=^## |\Z)", changelog, re.M | re.S)
    return found[1].strip() if found else None


def check(version: str, root: Path = ROOT) -> None:
    """Raises Refused with every place that is not ready for this version."""
    wanted, wrong = number(version), []
    found = tomllib.loads((root / "pyproject.toml").read_text())["project"]["version"]
    if found != wanted:
        wrong.append(f"pyproject.toml: version is {found}, not {wanted}")
    changelog = (root / "CHANGELOG.md").read_text()
    if not section(changelog, rf"{re.escape(wanted)} - \d{{4}}-\d\d-\d\d$"):
        wrong.append(f"CHANGELOG.md: no text under a heading `## {wanted} - YYYY-MM-DD`")
    if section(changelog, "Unreleased"):
        wrong.append(f"CHANGELOG.md: what stands under Unreleased belongs to {wanted} now")
    named = dict(re.findall(r"^(version|appVersion): ['\"]?([^\s'\"]+)", (root / "helm/Chart.yaml").read_text(), re.M))
    keys = ("version", "appVersion")
    wrong += [f"helm/Chart.yaml: {key} is {named.get(key)}, not {wanted}" for key in keys if named.get(key) != wanted]
    if wrong:
        raise Refused("\n".join(wrong))


def image(version: str, target: str, registry: str, root: Path = ROOT) -> None:
    """Push REGISTRY/radiance:VERSION-TARGET with its SBOM and provenance, and sign its digest."""
    check(version, root)
    repository, facts = f"{registry}/{NAME}", dist(root) / f"image-{target}.json"
    run(
        *("docker", "buildx", "bake", "--push", "--sbom=true", "--provenance=mode=max", "--metadata-file", str(facts)),
        *("--set", f"{target}.tags={repository}:{number(version)}-{target}", target),
        where=root,
    )
    digest = json.loads(facts.read_text())[target]["containerimage.digest"]
    sign(f"{repository}@{digest}", dist(root) / f"image-{target}.ref", root)


def chart(version: str, registry: str, root: Path = ROOT) -> None:
    """Push the chart to REGISTRY/charts/radiance, and sign its digest."""
    check(version, root)
    run("helm", "package", "helm", "--destination", str(dist(root)), where=root)
    archive = dist(root) / f"{NAME}-{number(version)}.tgz"
    said = run("helm", "push", str(archive), f"oci://{registry}/charts", where=root)
    if not (found := re.search(r"^Digest: (sha256:[0-9a-f]{64})$", said, re.M)):
        raise Refused(f"helm push told no digest, so there is nothing to sign; it said:\n{said}")
    sign(f"{registry}/charts/{NAME}@{found[1]}", dist(root) / "chart.ref", root)


def sign(reference: str, record: Path, root: Path) -> None:
    """Keyless: the certificate names the workflow that runs this. The record is written after the signature stands."""
    run("cosign", "sign", "--yes", reference, where=root)
    record.write_text(reference + "\n")


def publish(version: str, root: Path = ROOT) -> None:
    """Raises Refused if no image or no chart has been signed."""
    check(version, root)
    signed = sorted(dist(root).glob("*.ref"))
    names = {path.stem.partition("-")[0] for path in signed}
    if names != {"image", "chart"}:
        raise Refused(f"dist/ has no record of a signed {' or '.join(sorted({'image', 'chart'} - names))}")
    notes = dist(root) / "notes.md"
    what = "\n".join(f"* `{path.read_text().strip()}`" for path in signed)
    text = section((root / "CHANGELOG.md").read_text(), re.escape(number(version)) + r"\b")
    notes.write_text(f"{text}\n\n### Signed\n\n{what}\n\nHow to verify them: docs/security.md.\n")
    kind = ["--prerelease"] if "-" in number(version) else []
    files = [str(path) for path in dist(root).glob("*.tgz")]
    run(
        "gh",
        "release",
        "create",
        version,
        "--verify-tag",
        "--title",
        version,
        "--notes-file",
        str(notes),
        *kind,
        *files,
        where=root,
    )


def dist(root: Path) -> Path:
    folder = root / "dist"
    folder.mkdir(exist_ok=True)
    return folder


def run(*command: str, where: Path) -> str:
    """Show and run; what it printed is passed on and returned. Raises CalledProcessError."""
    print("+", *command, file=sys.stderr, flush=True)
    with subprocess.Popen(command, cwd=where, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        assert process.stdout
        lines = []
        for line in process.stdout:
            sys.stderr.write(line)
            lines.append(line)
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, command)
    return "".join(lines)


STEPS: dict[str, tuple[Callable[..., None], tuple[str, ...]]] = {
    "check": (check, ()),
    "image": (image, ("target", "registry")),
    "chart": (chart, ("registry",)),
    "publish": (publish, ()),
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    steps = parser.add_subparsers(dest="step", required=True)
    for name, (_, more) in STEPS.items():
        step = steps.add_parser(name)
        for argument in ("version", *more):
            step.add_argument(argument)
    values = vars(parser.parse_args())
    step, _ = STEPS[values.pop("step")]
    if empty := [name for name, value in values.items() if not value]:
        parser.error(f"{' and '.join(empty).upper()} must not be empty: make ... {empty[0].upper()}=...")
    try:
        step(**values)
    except Refused as error:
        print(f"release: {error}", file=sys.stderr)
        return 1
    except (subprocess.CalledProcessError, FileNotFoundError) as error:
        print(f"release: {error}", file=sys.stderr)
        return getattr(error, "returncode", 127)
    return 0


if __name__ == "__main__":
    sys.exit(main())
