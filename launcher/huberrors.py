"""What huggingface_hub, its HTTP client or the disk raised -> one of our errors, which says what to do and has a code."""

from __future__ import annotations

import errno

from launcher.errors import AccessDenied, CacheUnwritable, LauncherError, ModelMissing, NetworkTrouble


def explained(error: Exception, role: str, repository: str) -> LauncherError:
    """`repository` as it is called in messages; `role`: the section of the profile that names it."""
    from huggingface_hub import constants, errors

    where = f"{repository} on {constants.ENDPOINT}"
    status = getattr(getattr(error, "response", None), "status_code", 0)
    short = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
    root = error.__cause__ if isinstance(error, errors.DryRunError) and isinstance(error.__cause__, Exception) else None
    if root is not None:
        return explained(root, role, repository)
    if isinstance(error, errors.GatedRepoError):
        return AccessDenied(
            f"{where} is gated: accept its terms with an account of yours, then set HF_TOKEN to a token of that account"
        )
    if isinstance(error, errors.RevisionNotFoundError):
        return ModelMissing(f"{where}: there is no such revision; correct {role}.revision in the profile")
    if status in (401, 403):
        return AccessDenied(
            f"{where}: refused ({status}). It does not exist, or is private: set HF_TOKEN to a token that may read it"
        )
    if isinstance(error, errors.RepositoryNotFoundError):
        return ModelMissing(f"{where}: there is no such repository; correct {role}.id in the profile")
    if isinstance(error, (errors.HfHubHTTPError, errors.OfflineModeIsEnabled, errors.LocalEntryNotFoundError)):
        return NetworkTrouble(
            f"{where}: {short}; try again, or serve from a cache that is complete (`radiance fetch --offline`)"
        )
    if isinstance(error, OSError) and error.errno in (
        errno.ENOSPC,
        errno.EACCES,
        errno.EROFS,
        errno.EPERM,
        errno.EDQUOT,
    ):
        return CacheUnwritable(f"{repository}: {short}; make room, mount a writable volume or set HF_HOME")
    if isinstance(error, OSError) or type(error).__module__.partition(".")[0] in ("httpx", "httpx2"):
        return NetworkTrouble(f"{where}: {short}; try again: what has come stays")
    return ModelMissing(f"{where}: {type(error).__name__}: {short}")
