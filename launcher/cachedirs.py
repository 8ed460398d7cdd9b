"""Where vLLM keeps compiled graphs: a folder of its own for every set of settings that changes a graph.

vLLM finds a compiled graph by a hash of its own configuration, environment and source files. What a plugin does is not in it,
so a graph compiled with the stock head would be taken for one with the 2-bit head, or one r for another. The stock head
alone (RADIANCE_FAST_DRAFT=0 patches nothing) shares vLLM's own folder. No secret, host name or path of a run is in the name:
the folder survives restarts. Triton's cache needs nothing of this: it hashes what it compiles.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from pathlib import Path

from launcher.errors import CacheUnwritable
from radiance import __version__
from radiance.settings import Mode

ROOT, INDUCTOR = "VLLM_CACHE_ROOT", "TORCHINDUCTOR_CACHE_DIR"


#: what a serve writes to -> where that is when the variable is unset
PLACES = {
    "HF_HOME": "{cache}/huggingface",
    ROOT: "{cache}/vllm",
    "TRITON_CACHE_DIR": "{home}/.triton/cache",
    "TMPDIR": "/tmp",
}


def places(environ: Mapping[str, str]) -> dict[str, Path]:
    home = environ.get("HOME") or os.path.expanduser("~")
    cache = environ.get("XDG_CACHE_HOME") or os.path.join(home, ".cache")
    return {name: Path(environ.get(name) or place.format(home=home, cache=cache)) for name, place in PLACES.items()}


def namespace(mode: Mode, rerank: int | None, vocab: Path | None, shadow_sample: int) -> str:
    """A readable name, equal for equal graphs; empty for the stock head. The vocabulary counts by content, if it is there."""
    if mode is Mode.OFF:
        return ""
    parts = [__version__, mode.name.lower(), f"r{rerank or 'auto'}"]
    if vocab is not None:
        try:
            key = vocab.read_bytes()
        except OSError:
            key = os.fsencode(vocab)
        parts.append(f"v{hashlib.sha256(key).hexdigest()[:12]}")
    if shadow_sample:
        parts.append(f"s{shadow_sample}")
    return "-".join(parts)


def environment(name: str, environ: Mapping[str, str]) -> dict[str, str]:
    """The two variables for vLLM, below the folders it would have used; nothing without a namespace."""
    if not name:
        return {}
    home = environ.get("XDG_CACHE_HOME") or os.path.join(environ.get("HOME") or "~", ".cache")
    root = Path(environ.get(ROOT) or os.path.join(home, "vllm")) / "radiance" / name
    inductor = environ.get(INDUCTOR)
    return {ROOT: str(root), INDUCTOR: str(Path(inductor) / "radiance" / name if inductor else root / "inductor")}


def check(env: Mapping[str, str]) -> None:
    """Make the folders now: vLLM would find out after minutes of loading. Raises CacheUnwritable."""
    for name in (ROOT, INDUCTOR):
        if not env.get(name):
            continue
        folder = Path(env[name]).expanduser()
        try:
            folder.mkdir(parents=True, exist_ok=True)
            probe = folder / f".radiance-{os.getpid()}"
            probe.touch()
            probe.unlink()
        except OSError as error:
            there = folder
            while not there.exists() and there != there.parent:
                there = there.parent
            info = there.stat()
            raise CacheUnwritable(
                f"{name}={folder} cannot be written by uid {os.getuid()}: {error.strerror} ({there} belongs to "
                f"{info.st_uid}:{info.st_gid}, mode {info.st_mode & 0o7777:04o}); mount a writable volume there or set {name}"
            ) from error
