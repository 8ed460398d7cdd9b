"""Python sources of released vLLM wheels, without installing them: downloaded once, only the files of interest are kept."""

from __future__ import annotations

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
    "vllm/model_executor/layers/logits_processor.py",
    "vllm/model_executor/layers/vocab_parallel_embedding.py",
    "vllm/model_executor/model_loader/base_loader.py",
    "vllm/model_executor/models/",
    "vllm/config/speculative.py",
)


def folder(version: str) -> Path:
    """Folder that holds vllm/... of that version. Raises CalledProcessError if the package index cannot give the wheel."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "radiance" / "sources"
    found = cache / f"vllm-{version}"
    if found.is_dir():
        return found
    cache.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=cache) as temporary:
        platforms = [f"--platform=manylinux{tag}_x86_64" for tag in ("_2_31", "_2_28", "2014", "1")]
        subprocess.run(
            [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--only-binary=:all:", "--python-version=3.12",
             "--implementation=cp", *platforms, "-d", temporary, f"vllm=={version}"],
            check=True,
        )  # fmt: skip
        (wheel,) = Path(temporary).glob("vllm-*.whl")
        out = Path(temporary) / "sources"
        with zipfile.ZipFile(wheel) as archive:
            for name in archive.namelist():
                if name.endswith(".py") and name.startswith(WANTED):
                    archive.extract(name, out)
        out.rename(found)
    return found
