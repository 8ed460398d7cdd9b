"""Folders of things made once on this machine: compiled kernels, launch tables. Standard library only.

Who can write such a folder decides what runs on the GPU, so it must belong to this user and to nobody else (0700).
"""

from __future__ import annotations

import os
import stat
import tempfile
from pathlib import Path

from radiance.errors import UnsupportedHead


def folder(kind: str) -> Path:
    """~/.cache/radiance/<kind>, or one folder a user below the system's temporary folder if there is no usable home."""
    home = Path(os.path.expanduser("~"))
    if home.is_absolute() and home != Path("/") and os.access(home, os.W_OK):
        return home / ".cache" / "radiance" / kind
    return Path(tempfile.gettempdir()) / f"radiance-{os.getuid()}" / kind


def checked(where: Path) -> Path | None:
    """The folder, made if need be; None if it cannot be made (then nothing is cached).

    Raises UnsupportedHead("cache_folder") if it belongs to somebody else or others may write or read it.
    """
    try:
        where.mkdir(mode=0o700, parents=True, exist_ok=True)
        found = where.lstat()
    except OSError:
        return None
    private = stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid() and not stat.S_IMODE(found.st_mode) & 0o077
    if not private:
        raise UnsupportedHead(
            "cache_folder",
            f"a cache must be a folder of user {os.getuid()} with mode 0700; {where} has owner {found.st_uid}, "
            f"mode {stat.S_IMODE(found.st_mode):04o}: chmod 700 it or remove it (cache.py)",
        )
    return where


def publish(path: Path, data: bytes) -> None:
    """Write a file whole, under a temporary name renamed into place, so that any number of ranks may do it at once.
    Raises OSError."""
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=".new-")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
        os.replace(name, path)
    except BaseException:
        os.unlink(name)
        raise
