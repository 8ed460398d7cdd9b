"""What a check may say."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import StrEnum


class Verdict(StrEnum):
    OK = "ok"
    WARN = "warn"
    FAIL = "fail"


@dataclass(frozen=True)
class Said:
    verdict: Verdict
    text: str
    fix: str = ""


Findings = Iterator[Said]


def ok(text: str) -> Said:
    return Said(Verdict.OK, text)


def warn(text: str, fix: str) -> Said:
    return Said(Verdict.WARN, text, fix)


def fail(text: str, fix: str) -> Said:
    return Said(Verdict.FAIL, text, fix)


def fail_if(wrong: bool) -> Callable[[str, str], Said]:
    """A failure where somebody relies on it, else a warning."""
    return fail if wrong else warn
