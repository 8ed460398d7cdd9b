"""The reason of the end, where Kubernetes looks for it: the container's termination message.

The file exists in every container of a pod and `kubectl describe pod` shows it beside the exit code. Elsewhere there is no
such file and nothing is written, unless a place is asked for.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from launcher.errors import LauncherError

log = logging.getLogger("radiance")

DEFAULT = Path("/dev/termination-log")
#: Kubernetes shows no more
LIMIT_BYTES = 4096


@contextmanager
def message(path: Path | None, redact: Callable[[str], str] = str) -> Iterator[None]:
    """Write why the block failed to `path` (None: DEFAULT, if it exists). The exception goes on."""
    try:
        yield
    except LauncherError as error:
        write(path, redact(f"exit {error.exit_code}, {type(error).__name__}: {error}"))
        raise
    except Exception as error:
        write(path, redact(f"exit 1, internal error: {error!r}"))
        raise


def write(path: Path | None, text: str) -> None:
    """Never raises: the exit code says the most important part anyway."""
    target = path or DEFAULT
    if path is None and not target.is_file():
        return
    try:
        with target.open("wb") as file:  # in place: the file is a mount, which cannot be replaced
            file.write(text.encode()[:LIMIT_BYTES])
    except OSError as error:
        log.warning("the termination message cannot be written to %s: %s", target, error.strerror)
