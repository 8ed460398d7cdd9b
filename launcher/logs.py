"""One form of log lines for the launcher and for vLLM: text for people, JSON for machines.

    text   2026-11-30 12:00:00,123 INFO radiance[17] message
    json   {"timestamp": "2026-11-30T12:00:00.123+00:00", "level": "INFO", "logger": "radiance", "process": 17, "message": "..."}

vLLM reads a logging configuration from a file (VLLM_LOGGING_CONFIG_PATH, in all supported releases; its HTTP server takes
the same one); it gets ours. What it prints besides its log, relay.py puts into the same form.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import Any

CONFIG_PATH = "VLLM_LOGGING_CONFIG_PATH"
#: a user who says this has a form of his own for vLLM
_OWN = (CONFIG_PATH, "VLLM_CONFIGURE_LOGGING")
_OWN_OPTIONS = {"log-config-file", "logging-config", "log-level"}


class Form(StrEnum):
    TEXT = "text"
    JSON = "json"


FORMATTERS: dict[Form, dict[str, Any]] = {
    Form.TEXT: {"format": "%(asctime)s %(levelname)s %(name)s[%(process)d] %(message)s"},
    Form.JSON: {
        "()": "pythonjsonlogger.json.JsonFormatter",
        "format": "%(levelname)s %(name)s %(process)d %(message)s",
        "rename_fields": {"levelname": "level", "name": "logger"},
        "timestamp": True,
    },
}


def configure(form: Form, redact: Callable[[str], str] = str) -> None:
    """The launcher's own log, on stderr. No record leaves with a secret in its text."""
    from logging.config import dictConfig  # not for --help

    dictConfig({**_base(form, "ext://sys.stderr"), "root": {"handlers": ["out"], "level": "INFO"},
                "loggers": {"httpx": {"level": "WARNING"}}})  # fmt: skip

    def clean(record: logging.LogRecord) -> bool:
        record.msg, record.args = redact(record.getMessage()), ()
        return True

    for handler in logging.getLogger().handlers:
        handler.addFilter(clean)


def for_vllm(form: Form, level: str = "INFO") -> dict[str, Any]:
    """What the file says: vLLM's loggers and those of its HTTP server, whose access log has no level of its own."""
    mine = {"handlers": ["out"], "level": level, "propagate": False}
    served = {"handlers": ["out"], "level": "INFO", "propagate": False}
    loggers = {"vllm": mine, "uvicorn": served, "uvicorn.access": served}
    return {**_base(form, "ext://sys.stdout"), "loggers": loggers, "root": {"handlers": ["out"], "level": "WARNING"}}


def environment(form: Form, environ: Mapping[str, str], options: set[str], folder: Path) -> dict[str, str]:
    """Write the file into `folder` and point vLLM to it; nothing if the user has told vLLM how to log."""
    if any(environ.get(name) for name in _OWN) or options & _OWN_OPTIONS:
        return {}
    path = folder / "logging.json"
    path.write_text(json.dumps(for_vllm(form, environ.get("VLLM_LOGGING_LEVEL", "").upper() or "INFO"), indent=1))
    return {CONFIG_PATH: str(path)}


def record(message: str, process: int, logger: str = "vllm.output", level: str = "INFO") -> str:
    """A JSON line for text that was no log record."""
    now = datetime.now(UTC).isoformat(timespec="milliseconds")
    found = {"level": level, "logger": logger, "process": process, "message": message, "timestamp": now}
    return json.dumps(found)


def _base(form: Form, stream: str) -> dict[str, Any]:
    handler = {"class": "logging.StreamHandler", "stream": stream, "formatter": "form"}
    return {"version": 1, "disable_existing_loggers": False, "formatters": {"form": FORMATTERS[form]},
            "handlers": {"out": handler}}  # fmt: skip
