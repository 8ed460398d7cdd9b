"""`radiance fetch`: every repository a profile needs (model, drafter, tokenizer), whole, in the hub cache, at its revision.

huggingface_hub does the work: a cut connection goes on at the byte where it broke, a fetch that was killed goes on at the
file where it was, and what is whole is not asked for again. What is added here: one fetcher at a time for a cache, so that
eight pods on one volume do not fetch eight times; a look at the disk before, not after; progress in a log that is no
terminal; `--offline` to see beforehand whether a machine without network can serve; and errors that say what to do.
"""

from __future__ import annotations

import os
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from launcher.errors import CacheUnwritable, LauncherError, ModelMissing, NetworkTrouble
from launcher.huberrors import explained
from launcher.schema import Profile

Say = Callable[[str], object]
GIB = 1 << 30
#: beside the checkpoint that vLLM loads: other formats of the same weights (Llama's original/ alone is 16 GB)
NOT_NEEDED = ["original/*", "*.gguf", "*.onnx", "*.msgpack", "*.h5", "*.tflite", "*.ot", "consolidated*.pth"]
TELL_SECONDS = 10.0


@dataclass(frozen=True)
class Repository:
    """`role`: the profile's section it comes from."""

    role: str
    id: str
    revision: str | None

    def __str__(self) -> str:
        return f"{self.role} {self.id}" + (f" at {self.revision}" if self.revision else "")


@dataclass(frozen=True)
class Fetched:
    repository: Repository
    folder: Path

    @property
    def commit(self) -> str:
        return self.folder.name


def repositories(profile: Profile) -> list[Repository]:
    """What vLLM will ask the hub for; empty when all of it is in folders."""
    sources = {"model": profile.model, "drafter": profile.drafter, "tokenizer": profile.tokenizer}
    return [Repository(role, source.id, source.revision) for role, source in sources.items() if source and source.id]


def check(profile: Profile) -> list[Fetched]:
    """Is everything here, without asking anybody? Raises ModelMissing that names all that is not."""
    found, missing = [], []
    for repository in repositories(profile):
        folder = cached(repository)
        if folder is None:
            missing.append(str(repository))
        else:
            found.append(Fetched(repository, folder))
    if missing:
        raise ModelMissing(
            f"not complete in {_cache()}: {', '.join(missing)}; run `radiance fetch --profile {profile.name}` where the hub "
            "can be reached, with the same HF_HOME"
        )
    return found


def fetch(profile: Profile, say: Say, workers: int = 8, terminal: bool = False) -> list[Fetched]:
    """Fetch what is missing. `workers`: files at once. Raises a LauncherError that says what to do; a hub that does not
    answer is none while the cache is whole."""
    wanted = repositories(profile)
    done = {repository: folder for repository in wanted if _pinned(repository) and (folder := cached(repository))}
    if len(done) < len(wanted):
        with _alone(say):
            for repository in wanted:
                if repository not in done:
                    done[repository] = _fetch(repository, say, workers, terminal)
    for repository in wanted:
        say(f"{repository}: complete in {done[repository]}")
    return [Fetched(repository, done[repository]) for repository in wanted]


def pin(profile: Profile, fetched: list[Fetched], folder: Path) -> Path:
    """Write the commits down, as a profile of the same name that lies over this one. Raises CacheUnwritable."""
    path = folder / f"{profile.name}.yaml"
    head = f"# Commits of {time.strftime('%Y-%m-%d')}, written by `radiance fetch --pin`; use with --profiles-dir {folder}\n"
    if path.exists() and not path.read_text().startswith("# Commits of "):
        raise CacheUnwritable(
            f"{path} is there and was not written by --pin; give another folder or put the revisions in by hand"
        )
    lines = ["schema_version: 1", f"name: {profile.name}", f"extends: {profile.name}"]
    for one in fetched:
        lines += [f"{one.repository.role}:", f"  revision: {one.commit}"]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        path.write_text(head + "\n".join(lines) + "\n")
    except OSError as error:
        raise CacheUnwritable(f"cannot write {path}: {error.strerror}") from error
    return path


def _cache() -> Path:
    from huggingface_hub import constants

    return Path(constants.HF_HUB_CACHE)


def _pinned(repository: Repository) -> bool:
    """A commit cannot change, so a whole copy needs no question to the hub. A branch or tag can."""
    revision = repository.revision or ""
    return len(revision) == 40 and all(letter in "0123456789abcdef" for letter in revision)


def cached(repository: Repository) -> Path | None:
    """The folder of the repository in the cache, if it is whole there. Asks nobody."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import LocalEntryNotFoundError

    try:
        return Path(
            snapshot_download(
                repository.id, revision=repository.revision, local_files_only=True, ignore_patterns=NOT_NEEDED
            )
        )
    except LocalEntryNotFoundError:
        return None


def _fetch(repository: Repository, say: Say, workers: int, terminal: bool) -> Path:
    from huggingface_hub import snapshot_download
    from huggingface_hub.utils.tqdm import disable_progress_bars

    if not terminal:
        disable_progress_bars()
    asked: dict[str, Any] = {"repo_id": repository.id, "revision": repository.revision, "ignore_patterns": NOT_NEEDED}
    try:
        files = snapshot_download(**asked, dry_run=True)
        missing = sum(file.file_size for file in files if file.will_download)
        _disk(missing, repository)
        say(f"{repository}: {len(files)} files, {missing / GIB:.2f} GiB to fetch into {_cache()}")
        with _progress(repository, missing, say, quiet=terminal or not missing):
            return Path(snapshot_download(**asked, max_workers=workers))
    except LauncherError:
        raise
    except Exception as error:
        trouble = explained(error, repository.role, str(repository))
        if isinstance(trouble, NetworkTrouble) and (folder := cached(repository)):
            say(f"{trouble}; what is in the cache is whole and will do")
            return folder
        raise trouble from error


def _disk(need: int, repository: Repository) -> None:
    there = _nearest(_cache())
    free = shutil.disk_usage(there).free
    if need > free:
        raise CacheUnwritable(
            f"{repository} needs {need / GIB:.1f} GiB more and {there} has {free / GIB:.1f} GiB free; "
            "make room or set HF_HOME to a larger volume"
        )


def _nearest(path: Path) -> Path:
    """The path itself, or the folder above it that exists."""
    while not path.exists():
        path = path.parent
    return path


@contextmanager
def _alone(say: Say) -> Iterator[None]:
    """One fetcher at a time. On file systems where locks do nothing the price is double traffic: the hub's files are moved
    into place whole."""
    from filelock import FileLock, Timeout

    cache = _cache()
    try:
        cache.mkdir(parents=True, exist_ok=True)
        lock = FileLock(cache / ".radiance-fetch.lock")
        told = 0.0
        while True:
            try:
                lock.acquire(timeout=0.5)
                break
            except Timeout:
                if time.monotonic() - told > TELL_SECONDS:
                    told = time.monotonic()
                    say(f"waiting: another fetch holds {lock.lock_file}")
    except OSError as error:
        there = _nearest(cache)
        raise CacheUnwritable(
            f"the hub cache {cache} cannot be written by uid {os.getuid()}: {error.strerror} ({there} belongs to uid "
            f"{there.stat().st_uid}); mount a writable volume there or set HF_HOME"
        ) from error
    try:
        yield
    finally:
        lock.release()


@contextmanager
def _progress(repository: Repository, total: int, say: Say, quiet: bool) -> Iterator[None]:
    """A line every 10 s: what has come, counted on the disk."""
    end = threading.Event()
    blobs = _cache() / f"models--{repository.id.replace('/', '--')}" / "blobs"
    before = _size(blobs)

    def tell() -> None:
        while not end.wait(TELL_SECONDS):
            come = min(_size(blobs) - before, total)
            say(f"{repository}: {come / GIB:.2f} of {total / GIB:.2f} GiB ({come / total:.0%})")

    if quiet:
        yield
        return
    thread = threading.Thread(target=tell, name="progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        end.set()
        thread.join()


def _size(folder: Path) -> int:
    total = 0
    for path in folder.glob("*"):
        try:
            total += path.stat().st_size
        except OSError:  # moved into place meanwhile
            continue
    return total
