"""RADIANCE_* environment variables -> a frozen Settings. The only reader of the environment in this package.

A leaf of the import graph, standard library only: the launcher uses it too. Rules:
empty means unset; an unknown RADIANCE_* name or a bad value is a SettingsError that names it; names that a Kubernetes
service link produces (RADIANCE_SERVICE_HOST, RADIANCE_PORT_8000_TCP, ...) are ignored and reported.
"""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from radiance.errors import SettingsError


class Mode(StrEnum):
    OFF = "0"
    ON = "1"
    SHADOW = "shadow"


class Require(StrEnum):
    NONE = "none"
    WARN = "warn"
    READY = "ready"
    FAIL = "fail"


#: name -> (what it means, default as shown to users). Drives the docs table and the "unknown name" message.
VARIABLES: dict[str, tuple[str, str]] = {
    "RADIANCE_FAST_DRAFT": (
        "0 = stock head, nothing patched; 1 = 2-bit head; shadow = stock head served, 2-bit head run beside it",
        "0",
    ),
    "RADIANCE_DRAFT_RERANK": (
        "rows of the head rescored exactly for each draft row",
        "32; four times the selector's k for top-k callers",
    ),
    "RADIANCE_DRAFT_VOCAB": ("file with the token ids the drafter may propose", "unset"),
    "RADIANCE_STATE_DIR": ("folder where each worker writes its state", "set by the launcher"),
    "RADIANCE_REQUIRE": ("none, warn, ready or fail: what a head that is not active does to the server", "warn"),
    "RADIANCE_SHADOW_SAMPLE": (
        "check 1 of N calls against the stock head (on NVIDIA one draft row of it, in CUDA graphs too); 0 = never",
        "0",
    ),
}

DEFAULT_RERANK = 32
MAX_RERANK = 1024

# What the kubelet injects for a Service called "radiance" or "radiance-anything": never a setting of ours.
_SERVICE_LINK = re.compile(
    r"^RADIANCE(_[A-Z0-9_]+)?_(SERVICE_HOST|SERVICE_PORT(_[A-Z0-9_]+)?|PORT(_\d+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)?)$"
)


@dataclass(frozen=True)
class Settings:
    """What the plugin was told. `rerank` None means: the default for the caller's kind."""

    mode: Mode = Mode.OFF
    rerank: int | None = None
    draft_vocab: Path | None = None
    state_dir: Path | None = None
    require: Require = Require.WARN
    shadow_sample: int = 0
    #: ignored service-link names, for one warning
    ignored: tuple[str, ...] = ()

    @property
    def enabled(self) -> bool:
        return self.mode is not Mode.OFF


def is_service_link(name: str) -> bool:
    """True for a RADIANCE_* name that Kubernetes makes from a Service; VARIABLES never match (tested)."""
    return name not in VARIABLES and _SERVICE_LINK.match(name) is not None


def read(environ: Mapping[str, str] | None = None) -> Settings:
    """Parse `environ` (default: the process's). Raises SettingsError naming variable, value and what is allowed."""
    env = os.environ if environ is None else environ
    ours = {name: env[name].strip() for name in env if name.startswith("RADIANCE_")}
    ignored = tuple(sorted(name for name in ours if is_service_link(name)))
    for name in sorted(ours):
        if name not in VARIABLES and name not in ignored:
            short = [known.removeprefix("RADIANCE_") for known in VARIABLES]
            near = difflib.get_close_matches(name.removeprefix("RADIANCE_"), short, n=1)
            hint = f"did you mean RADIANCE_{near[0]}?" if near else f"known: {', '.join(VARIABLES)}"
            raise SettingsError(f"{name} is not a Radiance setting ({hint}); unset it")
    given = {name: value for name, value in ours.items() if value and name in VARIABLES}
    vocab = given.get("RADIANCE_DRAFT_VOCAB")
    state = given.get("RADIANCE_STATE_DIR")
    return Settings(
        mode=Mode(_choice(given, "RADIANCE_FAST_DRAFT", [str(m) for m in Mode], Mode.OFF)),
        rerank=_integer(given, "RADIANCE_DRAFT_RERANK", 1, MAX_RERANK, None),
        draft_vocab=Path(vocab) if vocab else None,
        state_dir=Path(state) if state else None,
        require=Require(_choice(given, "RADIANCE_REQUIRE", [str(r) for r in Require], Require.WARN)),
        shadow_sample=_integer(given, "RADIANCE_SHADOW_SAMPLE", 0, 1_000_000_000, 0) or 0,
        ignored=ignored,
    )


def tolerant(environ: Mapping[str, str] | None = None) -> Settings:
    """Settings for a process whose variables are wrong: off, but still telling where to report that."""
    env = os.environ if environ is None else environ
    state = env.get("RADIANCE_STATE_DIR", "").strip()
    return Settings(state_dir=Path(state) if state else None)


def _choice(given: Mapping[str, str], name: str, allowed: list[str], default: str) -> str:
    value = given.get(name, default)
    if value not in allowed:
        raise SettingsError(f"{name}={value!r} is not allowed; use one of {', '.join(allowed)} (environment)")
    return value


def _integer(given: Mapping[str, str], name: str, low: int, high: int, default: int | None) -> int | None:
    if name not in given:
        return default
    try:
        value = int(given[name])
    except ValueError:
        raise SettingsError(
            f"{name}={given[name]!r} is not a whole number; use {low} to {high} (environment)"
        ) from None
    if not low <= value <= high:
        raise SettingsError(f"{name}={value} is out of range; use {low} to {high} (environment)")
    return value
