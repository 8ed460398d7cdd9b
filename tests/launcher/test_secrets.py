"""Secrets: from the environment or a file, one value, and never in anything written."""

from __future__ import annotations

import json
from pathlib import Path
from urllib.parse import quote

import pytest

from launcher.errors import SettingsConflict
from launcher.secrets import Redactor, looks_secret, resolve, warning


@pytest.mark.parametrize(
    "name",
    [
        "HF_TOKEN",
        "VLLM_API_KEY",
        "AWS_SECRET_ACCESS_KEY",
        "DB_PASSWORD",
        "my_api_key",
        "MYSQL_PASSWD",
        "GIT_CREDENTIALS",
    ],
)
def test_names_of_secrets(name: str) -> None:
    assert looks_secret(name)


@pytest.mark.parametrize("name", ["TOKENIZERS_PARALLELISM", "PATH", "VLLM_CACHE_ROOT"])
def test_other_names(name: str) -> None:
    assert not looks_secret(name)


def test_a_file_gives_the_secret_without_its_newline(tmp_path: Path) -> None:
    (tmp_path / "hf").write_text("hf_123456\n")
    (tmp_path / "key").write_text("key-123456")
    found = resolve({"A": "1", "HF_TOKEN_FILE": str(tmp_path / "hf")}, tmp_path / "key")
    assert (found["HF_TOKEN"], found["VLLM_API_KEY"], found["A"]) == ("hf_123456", "key-123456", "1")
    assert resolve({"VLLM_API_KEY_FILE": str(tmp_path / "key")})["VLLM_API_KEY"] == "key-123456"


def test_the_same_secret_twice_is_no_conflict_another_one_is(tmp_path: Path) -> None:
    (tmp_path / "key").write_text("key-123456")
    assert resolve({"VLLM_API_KEY": "key-123456"}, tmp_path / "key")["VLLM_API_KEY"] == "key-123456"
    with pytest.raises(SettingsConflict) as raised:
        resolve({"VLLM_API_KEY": "key-other!"}, tmp_path / "key")
    assert "VLLM_API_KEY different values" in str(raised.value)
    assert not any(value in str(raised.value) for value in ("key-123456", "key-other!"))


@pytest.mark.parametrize("name", ["VLLM_API_KEY", "HF_TOKEN"])
def test_an_empty_variable_beside_a_file_is_an_unset_one(tmp_path: Path, name: str) -> None:
    (tmp_path / "one").write_text("secret-123456\n")
    (tmp_path / "other").write_text("secret-others\n")
    assert resolve({name: "", f"{name}_FILE": str(tmp_path / "one")})[name] == "secret-123456"
    if name == "VLLM_API_KEY":
        with pytest.raises(SettingsConflict, match="different values"):
            resolve({name: "", f"{name}_FILE": str(tmp_path / "one")}, tmp_path / "other")


@pytest.mark.parametrize("content", ["", "\n", "one\ntwo\n", None, b"\xff\xfe\x00"])
def test_a_file_without_one_line_is_refused_and_named(tmp_path: Path, content: str | bytes | None) -> None:
    path = tmp_path / "key"
    if content is not None:
        path.write_bytes(content.encode() if isinstance(content, str) else content)
    with pytest.raises(SettingsConflict, match=str(path)):
        resolve({}, path)


def test_the_redactor_takes_values_of_secret_names_only() -> None:
    value = 'se"cret\\ä'
    redact = Redactor({"HF_TOKEN": value, "HF_TOKEN_PATH": "/run/secrets/hf", "A_KEY": "true", "NAME": "visible-value"})
    assert redact(f"x {value} y") == "x *** y"
    assert redact(json.dumps({"t": value})) == '{"t": "***"}'
    assert redact(f"GET /?t={quote(value)}&x=1") == "GET /?t=***&x=1"
    assert redact("/run/secrets/hf true visible-value") == "/run/secrets/hf true visible-value"


@pytest.mark.parametrize("name", ["HTTPS_PROXY", "http_proxy", "HF_ENDPOINT"])
def test_the_user_of_a_url_is_hidden_its_host_is_not(name: str) -> None:
    redact = Redactor({name: "http://eva:p%40ss-word@proxy.example:3128", "PLAIN": "http://proxy.example:3128"})
    said = "via http://eva:p%40ss-word@proxy.example:3128: p@ss-word was refused, p%40ss-word too"
    assert redact(said) == "via http://***@proxy.example:3128: *** was refused, *** too"


def test_a_user_without_a_password_is_hidden_in_its_url_alone() -> None:
    redact = Redactor({"INDEX": "https://ubuntu@files.example/simple"})
    assert redact("ubuntu 24.04: https://ubuntu@files.example") == "ubuntu 24.04: https://***files.example"


def test_an_api_key_that_is_too_short_to_be_hidden_is_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "key").write_text("k1234\n")
    for environ, path in (({"VLLM_API_KEY": "k1234"}, None), ({}, tmp_path / "key")):
        with pytest.raises(SettingsConflict, match="VLLM_API_KEY") as raised:
            resolve(environ, path)
        assert "k1234" not in str(raised.value)
    assert resolve({"VLLM_API_KEY": "k12345"})["VLLM_API_KEY"] == "k12345"


def test_a_secret_that_begins_like_another_is_taken_whole() -> None:
    assert Redactor({"A_KEY": "abcdef", "B_KEY": "abcdefghi"})("abcdefghi abcdef") == "*** ***"


@pytest.mark.parametrize(
    ("vllm", "said"), [("0.26.0", True), ("0.28.1", True), ("0.29.0", False), ("0.33.0+cpu", False), ("unknown", False)]
)
def test_a_vllm_that_writes_the_key_into_its_cache_is_warned_of(vllm: str, said: bool) -> None:
    assert bool(warning({"VLLM_API_KEY": "sk-123456"}, vllm)) == said
    assert warning({}, vllm) == ""
