"""Why did a start fail? vLLM ends with code 1 for everything; its last lines tell what an orchestrator needs to know.

Only the names of exceptions and messages of the libraries themselves are looked for, newest line first. What is not known
stays EngineDied (70): a wrong 66 would stop a retry that could have helped.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from launcher.errors import (
    AcceleratorMissing,
    AccessDenied,
    CacheUnwritable,
    EngineDied,
    LauncherError,
    ModelMissing,
    NetworkTrouble,
)

#: (error, what its line looks like); the first that fits any line decides, so the more exact ones come first
CAUSES: tuple[tuple[type[LauncherError], re.Pattern[str]], ...] = (
    (AccessDenied, re.compile(r"GatedRepoError|401 Client Error|403 Client Error|Access to model .* is restricted")),
    (ModelMissing, re.compile(r"RepositoryNotFoundError|RevisionNotFoundError|EntryNotFoundError: 404|404 Client Error|"
                              r"is not a local folder and is not a valid model identifier")),
    (NetworkTrouble, re.compile(r"LocalEntryNotFoundError|ConnectionError|ConnectTimeout|ReadTimeout|Max retries exceeded|"
                                r"NameResolutionError|Temporary failure in name resolution|We couldn't connect to|"
                                r"5\d\d Server Error")),
    (AcceleratorMissing, re.compile(r"No CUDA GPUs are available|no NVIDIA driver|Failed to infer device type|"
                                    r"CUDA driver version is insufficient|system has unsupported display driver|"
                                    r"forward compatibility was attempted|invalid device ordinal")),
    (CacheUnwritable, re.compile(r"PermissionError: .*|\[Errno (?:13|28|30)\].*")),
)  # fmt: skip


def explain(tail: Sequence[str], text: str, starting: bool) -> LauncherError:
    """The error for a vLLM that ended by itself; `tail` its last lines, `text` what the launcher knows of the end."""
    for error, pattern in CAUSES if starting else ():
        for line in reversed(tail):
            if pattern.search(line):
                return error(f"{text}: {line.strip()[:500]}")
    last = next((line.strip() for line in reversed(tail) if _is_error(line)), "")
    return EngineDied(f"{text}; {f'its last error: {last[:500]}' if last else 'its own log above says why'}")


def _is_error(line: str) -> bool:
    return re.search(r"\b[A-Z]\w*(?:Error|Exception)\b: ", line) is not None
