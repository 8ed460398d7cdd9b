"""The launcher's own log lines: one form, no secret."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator

import pytest

from launcher import logs
from launcher.logs import Form
from launcher.secrets import Redactor


@pytest.fixture(autouse=True)
def _root_logger() -> Iterator[None]:
    root = logging.getLogger()
    before = root.handlers[:], root.level
    yield
    root.handlers[:], root.level = before


def test_json_lines_have_the_fields_of_vllms_and_no_secret(capsys: pytest.CaptureFixture[str]) -> None:
    logs.configure(Form.JSON, Redactor({"HF_TOKEN": "hf_secret"}))
    logging.getLogger("radiance").warning("token %s of %d", "hf_secret", 3)
    err = capsys.readouterr().err
    [line] = [json.loads(text) for text in err.splitlines()]
    assert line.pop("timestamp").startswith("20")
    assert isinstance(line.pop("process"), int)
    assert line == {"level": "WARNING", "logger": "radiance", "message": "token *** of 3"}
    assert json.loads(logs.record("x", 1)).keys() == {*line, "timestamp", "process"}


def test_text_lines(capsys: pytest.CaptureFixture[str]) -> None:
    logs.configure(Form.TEXT, Redactor({"HF_TOKEN": "hf_secret"}))
    logging.getLogger("radiance").info("100%% of %s", "hf_secret")
    err = capsys.readouterr().err
    assert err.endswith(" 100% of ***\n")
    assert " INFO radiance[" in err


def test_vllm_gets_the_same_formatter() -> None:
    for form in Form:
        assert logs.for_vllm(form)["formatters"] == {"form": logs.FORMATTERS[form]}
