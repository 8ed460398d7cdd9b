"""Secrets: which variables are some, where they come from, and how they stay out of everything that is written down.

They come from the environment or from a file, never from a command line, which every user of the machine can read. vLLM gets
them in its environment. Whatever is printed (plans, errors, vLLM's own output) passes a Redactor.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import quote, unquote

from packaging.version import InvalidVersion, Version

from launcher.errors import SettingsConflict

#: environment names whose values are never in a profile and never printed
SECRET_NAME = re.compile(r"KEY|TOKEN(?!IZER)|SECRET|PASSWORD|PASSWD|CREDENTIAL", re.IGNORECASE)
#: a variable that names a file -> the variable that gets its content
FILES = {"HF_TOKEN_FILE": "HF_TOKEN", "VLLM_API_KEY_FILE": "VLLM_API_KEY"}
#: a value such as http://user:password@proxy:3128, whatever the variable is called
USERINFO = re.compile(r"://([^/@\s]+)@")
#: shorter values are words like "true": to blot them out would spoil every line and hide nothing
SHORTEST = 6
HIDDEN = "***"
#: from here on vLLM leaves the API key out of the key of its compile cache
CLEAN_CACHE_KEY = Version("0.29")


def looks_secret(name: str) -> bool:
    """True for an environment name whose value must not be shown. Errs on the side of hiding."""
    return SECRET_NAME.search(name) is not None


def resolve(environ: Mapping[str, str], api_key_file: Path | None = None) -> dict[str, str]:
    """`environ` with the secrets that are in files. Raises SettingsConflict: unreadable, empty, given twice
    and different, or an API key too short to be hidden."""
    found = dict(environ)
    sources = [(f"{name}={environ[name]}", Path(environ[name]), target)
               for name, target in FILES.items() if environ.get(name)]  # fmt: skip
    if api_key_file is not None:
        sources.append((f"--api-key-file {api_key_file}", api_key_file, "VLLM_API_KEY"))
    for source, path, target in sources:
        try:
            value = path.read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            reason = getattr(error, "strerror", None) or "not text"
            raise SettingsConflict(
                f"{source}: cannot be read: {reason}; put the secret there, readable by this user"
            ) from error
        if not value or len(value.splitlines()) != 1:
            raise SettingsConflict(f"{source}: must hold one line, the secret itself; found {len(value.splitlines())}")
        # Empty is unset: a compose file exports what its .env leaves out.
        if (found.get(target) or value) != value:
            raise SettingsConflict(f"{source} and another source give {target} different values; keep one of them")
        found[target] = value
    if 0 < len(found.get("VLLM_API_KEY", "")) < SHORTEST:
        raise SettingsConflict(
            f"VLLM_API_KEY has fewer than {SHORTEST} characters: easy to guess, and too short to be kept out of logs; take "
            "a longer one, such as from `openssl rand -hex 32`"
        )
    return found


class Redactor:
    """Takes secret values out of text: as they are, as JSON writes them, as a URL does."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        values = {value for name, value in environ.items() if _is_value(name)}
        for users in USERINFO.findall("\n".join(environ.values())):
            _, colon, password = users.partition(":")
            # A name alone may be a token, but "ubuntu" must not vanish from every line: only where it is a user.
            values |= {users, password, unquote(password)} if colon else {f"{users}@"}
        values = {value for value in values if len(value) >= SHORTEST}
        forms = {form for value in values for form in (value, json.dumps(value)[1:-1], quote(value, safe=""))}
        longest_first = sorted(forms, key=len, reverse=True)
        self._pattern = re.compile("|".join(map(re.escape, longest_first))) if forms else None

    def __call__(self, text: str) -> str:
        return self._pattern.sub(HIDDEN, text) if self._pattern else text


def warning(environ: Mapping[str, str], vllm: str) -> str:
    """What this vLLM does with the API key that it should not; empty if nothing. Read in the sources of 0.26 (does) and 0.29."""
    try:
        old = Version(vllm) < CLEAN_CACHE_KEY
    except InvalidVersion:
        return ""
    if not old or not environ.get("VLLM_API_KEY"):
        return ""
    return (
        f"vLLM {vllm} writes VLLM_API_KEY into cache_key_factors.json of its compile cache ({CLEAN_CACHE_KEY} does not): keep "
        "that folder private, or take a newer vLLM"
    )


def _is_value(name: str) -> bool:
    """A path to a secret is none."""
    return looks_secret(name) and not name.upper().endswith(("_FILE", "_PATH", "_DIR"))
