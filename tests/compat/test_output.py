"""What the launcher reads from vLLM's output and passes on its command line, looked up in the sources of real releases."""

from __future__ import annotations

import functools

import pytest

from launcher.relay import MARKS
from tests.compat import sources
from tests.compat.test_seams import RELEASES


@functools.cache
def text(version: str) -> str:
    return "\n".join(path.read_text() for path in (sources.folder(version) / "vllm").rglob("*.py"))


@pytest.mark.parametrize("version", RELEASES)
@pytest.mark.parametrize("mark", MARKS)
def test_the_lines_that_begin_a_phase(version: str, mark: str) -> None:
    assert mark in text(version), f"vLLM {version} no longer says {mark!r}: correct MARKS of launcher/relay.py"


@pytest.mark.parametrize("version", RELEASES)
@pytest.mark.parametrize("name", ["shutdown_timeout", "log_config_file", "VLLM_LOGGING_CONFIG_PATH"])
def test_what_a_stop_and_the_logs_rely_on(version: str, name: str) -> None:
    assert name in text(version)
