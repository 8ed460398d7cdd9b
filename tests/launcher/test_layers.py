"""Who wins: any layers merged keep their order of precedence, and `explain` says of a plan what the plan does."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st
from serving import profile_text

from launcher import explain, plan, profiles
from launcher.cli import main
from launcher.errors import LauncherError, ProfileError, SettingsConflict, UsageProblem
from launcher.layers import Layer, merge
from launcher.plan import Options

HOME = {"HOME": "/home/me"}
BASE = json.loads(profile_text(Path("/models/tiny")))

#: what a layer may say, all of it valid on BASE
FIELDS = st.fixed_dictionaries(
    {},
    optional={
        "rerank": st.none() | st.integers(1, 1024),
        "require": st.none() | st.sampled_from(["none", "warn", "ready", "fail"]),
        "fast_draft": st.none() | st.sampled_from(["enabled", "disabled", "shadow"]),
        "max_model_len": st.none() | st.integers(1, 10**6),
        "tensor_parallel_size": st.none() | st.integers(1, 8),
        "shadow_sample": st.none() | st.integers(0, 100),
        "aliases": st.none() | st.lists(st.sampled_from("abc"), max_size=2),
        "args": st.none() | st.dictionaries(st.sampled_from(["seed", "block-size", "dtype"]), st.none() | st.integers(1, 9)),
        "env": st.none() | st.dictionaries(st.sampled_from(["PLAIN_A", "PLAIN_B"]), st.none() | st.sampled_from(["1", "2", "x y"])),
        "expected": st.none() | st.fixed_dictionaries({}, optional={"acceptance_per_draft_min": st.none() | st.integers(0, 5)}),
    },
)  # fmt: skip
ENVIRON = st.fixed_dictionaries(
    {},
    optional={
        "RADIANCE_FAST_DRAFT": st.sampled_from(["0", "1", "shadow", ""]),
        "RADIANCE_DRAFT_RERANK": st.sampled_from(["7", "900", ""]),
        "RADIANCE_REQUIRE": st.sampled_from(["none", "fail"]),
        "RADIANCE_SHADOW_SAMPLE": st.sampled_from(["0", "5"]),
        "PLAIN_A": st.sampled_from(["from the environment", ""]),
        "PLAIN_C": st.just("nobody names it"),
    },
)
SETS = st.lists(
    st.sampled_from(
        ["rerank=11", "rerank=null", "args.seed=8", "args=null", "env.PLAIN_A=typed", "env.PLAIN_B=typed", "require=ready",
         "max_model_len=77", "fast_draft=disabled", "expected.acceptance_per_draft_min=1", "aliases=[z]"]
    ),
    max_size=3,
)  # fmt: skip
EXTRA = st.sampled_from([(), ("--dtype", "half"), ("--no-block-size",), ("--seed=3", "--other")])


def leaves(value: Any, key: tuple[str, ...] = ()) -> dict[tuple[str, ...], Any]:
    if isinstance(value, dict):
        return {k: v for name, item in value.items() for k, v in leaves(item, (*key, name)).items()}
    return {key: value}


def winner(layers: list[dict[str, Any]], key: tuple[str, ...]) -> Any:
    """Said another way than layers.py does it: from the top, the first layer that speaks of the key or takes it away."""
    for layer in reversed(layers):
        value: Any = layer
        for part in key:
            if not isinstance(value, dict) or part not in value:
                break
            value = value[part]
            if value is None:
                return None
        else:
            if not isinstance(value, dict):
                return value
    return None


@given(st.lists(FIELDS, min_size=1, max_size=5))
def test_any_merge_keeps_precedence(layers: list[dict[str, Any]]) -> None:
    merged = merge(Layer("user file", str(n), values) for n, values in enumerate(layers))
    found = leaves(merged.values)
    for key in {key for layer in layers for key in leaves(layer)}:
        wanted = winner(layers, key)
        assert found.get(key) == wanted, key
        if wanted is not None:
            said = merged.history[key][-1]
            assert said.value == wanted
            assert winner([layers[int(said.layer.origin)]], key) == wanted
            assert all(winner([layer], key) is None for layer in layers[int(said.layer.origin) + 1 :])


@given(st.lists(FIELDS, max_size=3), ENVIRON, SETS, EXTRA)
def test_explain_agrees_with_plan(
    files: list[dict[str, Any]], user: dict[str, str], sets: list[str], extra: Any
) -> None:
    """A profile written down from what `explain` says, in an empty environment, makes the same plan."""
    stack = [Layer("user file", f"{n}.yaml", values) for n, values in enumerate([BASE, *files])]
    options = Options(extra=extra, sets=tuple(sets))
    planned = plan.build(stack, options, HOME | user)
    rows = explain.rows(planned, {"port": False})
    written: dict[str, Any] = {}
    for row in rows:
        section, _, rest = row.key.partition(".")
        if section in ("environment", "option") or row.source == "default" or row.value in (None, "see after --"):
            continue
        place = written
        *parts, last = [section, *([rest] if rest else [])]
        for part in parts:
            place = place.setdefault(part, {})
        place[last] = row.value
    again = plan.build(profiles.Profile.model_validate(written), Options(extra=extra), HOME)
    assert again.argv == planned.argv
    assert again.env == planned.env
    assert (again.mode, again.rerank, again.require) == (planned.mode, planned.rerank, planned.require)


@given(FIELDS, ENVIRON, SETS)
def test_command_line_over_environment_over_file(file: dict[str, Any], user: dict[str, str], sets: list[str]) -> None:
    planned = plan.build(
        [Layer("user file", "a", BASE), Layer("user file", "b", file)], Options(sets=tuple(sets)), HOME | user
    )
    typed = [text for text in sets if text.startswith("rerank=")]
    if typed:
        wanted = {"rerank=11": 11, "rerank=null": None}[typed[-1]]
    elif user.get("RADIANCE_DRAFT_RERANK"):
        wanted = int(user["RADIANCE_DRAFT_RERANK"])
    else:
        wanted = file.get("rerank")
    assert planned.rerank == wanted


def stack(tmp_path: Path, **change: Any) -> list[Layer]:
    (tmp_path / "tiny.yaml").write_text(profile_text(Path("/models/tiny"), **change))
    return profiles.stack("tiny", tmp_path)


@pytest.mark.parametrize(
    ("sets", "user", "kind", "said"),
    [
        (["bogus=1"], {}, UsageProblem, "--set bogus: 'bogus' is not a key"),
        (["speculative.num_speculative_token=1"], {}, UsageProblem, "did you mean 'num_speculative_tokens'?"),
        (["rerank=0"], {}, UsageProblem, "--set rerank: rerank: Input should be greater than or equal to 1 (given: 0)"),
        (["rerank"], {}, UsageProblem, "--set takes FIELD=VALUE"),
        (["=1"], {}, UsageProblem, "--set takes FIELD=VALUE"),
        (["aliases=[a"], {}, UsageProblem, "not valid YAML"),
        (["name=x"], {}, UsageProblem, "that is the file's to say"),
        (["env.MY_TOKEN=s3cr3t"], {}, UsageProblem, "MY_TOKEN looks like a secret"),
        (["drafter={id: a/d, selector_top_k: 16}"], {"RADIANCE_DRAFT_RERANK": "63"}, SettingsConflict, ""),
        (
            [],
            {"RADIANCE_DRAFT_VOCAB": "ids.txt"},
            SettingsConflict,
            "RADIANCE_DRAFT_VOCAB: draft_vocab: ids.txt is a relative",
        ),
    ],
)
def test_the_layer_that_made_it_wrong_is_blamed(
    tmp_path: Path, sets: list[str], user: dict[str, str], kind: type[LauncherError], said: str
) -> None:
    if kind is SettingsConflict and sets:
        kind = UsageProblem  # 63 alone is fine: it was the drafter typed after it that made it too small
    with pytest.raises(kind) as caught:
        plan.build(stack(tmp_path), Options(sets=tuple(sets)), HOME | user)
    assert said in str(caught.value)
    assert "s3cr3t" not in str(caught.value)


def test_a_variable_that_breaks_a_rule_of_the_file_is_the_environments_fault(tmp_path: Path) -> None:
    files = stack(tmp_path, drafter={"id": "a/d", "selector_top_k": 16}, rerank=64)
    with pytest.raises(SettingsConflict, match="rerank is 63 but must be at least 4 x") as caught:
        plan.build(files, Options(), HOME | {"RADIANCE_DRAFT_RERANK": "63"})
    assert caught.value.exit_code == 78
    assert plan.build(files, Options(sets=("rerank=64",)), HOME | {"RADIANCE_DRAFT_RERANK": "63"}).rerank == 64


def test_a_broken_file_stays_the_files_fault(tmp_path: Path) -> None:
    with pytest.raises(ProfileError):
        plan.build(stack(tmp_path, rerank=-1), Options(), HOME | {"RADIANCE_REQUIRE": "fail"})


def test_the_head_without_speculation_stays_off_and_says_so(tmp_path: Path) -> None:
    files = stack(tmp_path, speculative=None, fast_draft="disabled")
    planned = plan.build(files, Options(), HOME | {"RADIANCE_FAST_DRAFT": "1"})
    assert planned.env["RADIANCE_FAST_DRAFT"] == "0"
    assert any("does not speculate" in note for note in planned.notes)
    sets = ("speculative={method: ngram, num_speculative_tokens: 2}",)
    assert plan.build(files, Options(sets=sets), HOME | {"RADIANCE_FAST_DRAFT": "1"}).env["RADIANCE_FAST_DRAFT"] == "1"


def test_null_takes_away_and_explain_says_who(tmp_path: Path) -> None:
    planned = plan.build(stack(tmp_path, rerank=64), Options(sets=("rerank=null",)), HOME)
    assert planned.rerank is None
    (row,) = [row for row in explain.rows(planned, {}) if row.key == "rerank"]
    assert (row.value, row.source, row.place) == (None, "command line", "taken away by --set rerank")
    assert row.over[0][0] == 64


def test_explain_shows_source_place_and_what_was_beaten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "smollm2-cpu.yaml").write_text(
        "schema_version: 1\nname: smollm2-cpu\nextends: smollm2-cpu\nrerank: 64\nmax_num_seqs: 4\n"
    )
    monkeypatch.setenv("RADIANCE_DRAFT_RERANK", "96")
    monkeypatch.setenv("HF_TOKEN", "hf_0123456789")
    command = ["explain", "--profile", "smollm2-cpu", "--profiles-dir", str(tmp_path), "--port", "8001"]
    result = CliRunner().invoke(main, [*command, "--json", "--", "--dtype", "hf_0123456789"])
    assert result.exit_code == 0, result.output
    assert "hf_0123" not in result.output
    found = {row["key"]: row for row in json.loads(result.stdout)["values"]}
    assert found["rerank"]["source"] == "environment"
    assert found["rerank"]["place"] == "RADIANCE_DRAFT_RERANK"
    assert [old["value"] for old in found["rerank"]["over"]] == [64, 48]
    assert found["max_num_seqs"]["source"] == "user file"
    assert found["max_num_seqs"]["place"] == f"{tmp_path}/smollm2-cpu.yaml:5"
    assert found["max_model_len"]["source"] == "built-in"
    assert found["max_num_batched_tokens"]["source"] == "default"
    assert (found["option.port"]["value"], found["option.port"]["source"]) == (8001, "command line")
    assert found["option.metrics_port"]["source"] == "default"
    assert found["args.dtype"]["source"] == "command line"
    text = CliRunner().invoke(main, command).stdout
    assert "RADIANCE_DRAFT_RERANK; over 64" in text
    assert "(built-in smollm2-cpu.yaml:" in text
    assert "max_num_batched_tokens" not in text
    assert "max_num_batched_tokens" in CliRunner().invoke(main, [*command, "--all"]).stdout


def test_a_dry_run_is_the_plan() -> None:
    run = CliRunner().invoke
    assert (
        run(main, ["--profile", "smollm2-cpu", "--dry-run"]).stdout
        == run(main, ["plan", "--profile", "smollm2-cpu"]).stdout
    )
