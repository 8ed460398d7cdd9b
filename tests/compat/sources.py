"""Python sources of released vLLM wheels, without installing them: downloaded once, only the files of interest are kept."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

#: what a wheel must give us; the rest (500 MB of extension code) is thrown away
WANTED = (
    "vllm/v1/spec_decode/",
    "vllm/v1/worker/gpu/",
    "vllm/v1/worker/gpu_worker.py",
    "vllm/v1/worker/gpu_model_runner.py",
    "vllm/model_executor/layers/logits_processor.py",
    "vllm/model_executor/layers/vocab_parallel_embedding.py",
    "vllm/model_executor/model_loader/base_loader.py",
    "vllm/model_executor/models/",
    "vllm/models/",
    "vllm/config/speculative.py",
    "vllm/engine/arg_utils.py",
    "vllm/envs.py",
    "vllm/logger.py",
)
#: the options of the API server; each release has them in another folder
ANYWHERE = ("/cli_args.py",)
PLATFORMS = [f"--platform=manylinux{tag}_x86_64" for tag in ("_2_31", "_2_28", "2014", "1")]
FOR = ["--only-binary=:all:", "--python-version=3.12", "--implementation=cp", *PLATFORMS]


def asked_for() -> list[str]:
    """The release that COMPAT_VLLM names: a version, or `newest`, the newest that the package index has."""
    wanted = os.environ.get("COMPAT_VLLM", "")
    if wanted == "newest":
        done = subprocess.run(
            [sys.executable, "-m", "pip", "index", "versions", *FOR, "vllm"], check=True, capture_output=True, text=True
        )
        wanted = done.stdout.partition("(")[2].partition(")")[0]  # "vllm (0.33.0)"
    return [wanted] if wanted else []


def folder(version: str) -> Path:
    """Folder that holds vllm/... of that version. Raises CalledProcessError if the package index cannot give the wheel."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "radiance" / "sources"
    # A folder made when fewer files were of interest must not be taken for a whole one.
    found = cache / f"vllm-{version}-{hashlib.sha256(repr(WANTED + ANYWHERE).encode()).hexdigest()[:8]}"
    if found.is_dir():
        return found
    cache.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=cache) as temporary:
        subprocess.run(
            [sys.executable, "-m", "pip", "download", "-q", "--no-deps", *FOR, "-d", temporary, f"vllm=={version}"],
            check=True,
        )
        (wheel,) = Path(temporary).glob("vllm-*.whl")
        out = Path(temporary) / "sources"
        with zipfile.ZipFile(wheel) as archive:
            for name in archive.namelist():
                if name.endswith(".py") and (name.startswith(WANTED) or name.endswith(ANYWHERE)):
                    archive.extract(name, out)
        out.rename(found)
    return found
