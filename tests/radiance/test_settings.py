from __future__ import annotations

import pytest

from radiance import settings
from radiance.errors import SettingsError
from radiance.settings import Mode, Require


def test_defaults_are_off() -> None:
    chosen = settings.read({})
    assert chosen.mode is Mode.OFF
    assert not chosen.enabled
    assert (chosen.rerank, chosen.draft_vocab, chosen.state_dir) == (None, None, None)
    assert chosen.require is Require.WARN


def test_everything_given() -> None:
    chosen = settings.read(
        {
            "RADIANCE_FAST_DRAFT": "shadow",
            "RADIANCE_DRAFT_RERANK": " 64 ",
            "RADIANCE_DRAFT_VOCAB": "/v.txt",
            "RADIANCE_STATE_DIR": "/s",
            "RADIANCE_REQUIRE": "fail",
            "RADIANCE_SHADOW_SAMPLE": "1000",
            "PATH": "/bin",
        }
    )
    assert chosen.mode is Mode.SHADOW
    assert chosen.rerank == 64
    assert str(chosen.draft_vocab) == "/v.txt"
    assert str(chosen.state_dir) == "/s"
    assert chosen.require is Require.FAIL
    assert chosen.shadow_sample == 1000


def test_empty_is_unset() -> None:
    assert settings.read(dict.fromkeys(settings.VARIABLES, "  ")) == settings.read({})


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("RADIANCE_FAST_DRAFT", "yes", "0, 1, shadow"),
        ("RADIANCE_FAST_DRAFT", "2", "0, 1, shadow"),
        ("RADIANCE_DRAFT_RERANK", "0", "1 to 1024"),
        ("RADIANCE_DRAFT_RERANK", "32.5", "whole number"),
        ("RADIANCE_REQUIRE", "always", "none, warn, ready, fail"),
        ("RADIANCE_SHADOW_SAMPLE", "-1", "0 to"),
        ("RADIANCE_FASTDRAFT", "1", "did you mean RADIANCE_FAST_DRAFT"),
        ("RADIANCE_ZZZ", "", "known: RADIANCE_FAST_DRAFT"),
    ],
)
def test_wrong_settings_are_named(name: str, value: str, says: str) -> None:
    with pytest.raises(SettingsError) as caught:
        settings.read({name: value})
    assert name in str(caught.value)
    assert says in str(caught.value)


@pytest.mark.parametrize(
    "name",
    [
        "RADIANCE_SERVICE_HOST",
        "RADIANCE_SERVICE_PORT",
        "RADIANCE_SERVICE_PORT_HTTP",
        "RADIANCE_PORT",
        "RADIANCE_PORT_8000_TCP",
        "RADIANCE_PORT_8000_TCP_ADDR",
        "RADIANCE_METRICS_PORT",
        "RADIANCE_METRICS_SERVICE_HOST",
    ],
)
def test_service_links_are_ignored(name: str) -> None:
    assert settings.read({name: "tcp://10.0.0.1:8000"}).ignored == (name,)


def test_no_setting_looks_like_a_service_link() -> None:
    assert not [name for name in settings.VARIABLES if settings._SERVICE_LINK.match(name)]


def test_tolerant_keeps_only_where_to_report() -> None:
    chosen = settings.tolerant({"RADIANCE_STATE_DIR": "/s", "RADIANCE_FAST_DRAFT": "bad"})
    assert not chosen.enabled
    assert str(chosen.state_dir) == "/s"
