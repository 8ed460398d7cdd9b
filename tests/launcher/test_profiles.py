"""Profiles: what is accepted, and that every refusal names file, line, key and the way out."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from serving import profile_text

from launcher import profiles, sections, yamlfile
from launcher.errors import ProfileError, UnknownProfile
from launcher.profiles import FastDraft


def refused(folder: Path, text: str) -> str:
    path = folder / "tiny.yaml"
    path.write_text(text)
    with pytest.raises(ProfileError) as caught:
        profiles.read(path)
    assert str(path) in str(caught.value)
    return str(caught.value)


def changed(**change: Any) -> str:
    return profile_text(Path("/models/tiny"), **change)


@pytest.mark.parametrize("entry", profiles.entries().values(), ids=lambda e: e.name)
def test_every_built_in_profile_is_valid(entry: profiles.Entry) -> None:
    found = profiles.read(entry.path)
    assert found.name == entry.name


def test_the_catalogue_has_the_embedded_default() -> None:
    found = profiles.find("smollm2-cpu")
    assert found.model.embedded == "smollm2"
    assert found.fast_draft is FastDraft.ENABLED
    # A rerank of all rows would be the stock head under another name.
    assert found.rerank is not None
    assert found.rerank <= 128


def test_unverified_profiles_say_no_and_not_false() -> None:
    assert profiles.find("qwen3.8-27b-mtp").verified == "no"


def test_an_unknown_key_names_file_line_key_allowed_and_nearest(tmp_path: Path) -> None:
    message = refused(tmp_path, "schema_version: 1\nname: tiny\nsumary: x\n")
    assert "tiny.yaml:3" in message
    assert "'sumary' is not a key (did you mean 'summary'?)" in message
    assert "allowed here: schema_version, name, extends, summary, model" in message


def test_an_unknown_nested_key_names_the_keys_of_its_section(tmp_path: Path) -> None:
    message = refused(tmp_path, changed(model={"path": "/m", "revison": "x"}))
    assert (
        "'model.revison' is not a key (did you mean 'revision'?); allowed here: id, embedded, path, revision" in message
    )


def test_a_missing_key_is_named(tmp_path: Path) -> None:
    assert "'served_name' is missing" in refused(tmp_path, changed(served_name=None))


def test_all_problems_of_a_file_are_told_at_once(tmp_path: Path) -> None:
    message = refused(tmp_path, changed(served_name=None, bogus=1))
    assert "served_name" in message
    assert "bogus" in message


def test_a_key_given_twice_is_refused_with_both_lines(tmp_path: Path) -> None:
    message = refused(tmp_path, "schema_version: 1\nenv:\n  A: '1'\n  B: '2'\n  A: '3'\n")
    assert "tiny.yaml:5" in message
    assert "'env.A' is given twice (first on line 3)" in message


@pytest.mark.parametrize(("value", "word"), [("true", "enabled"), ("false", "disabled")])
def test_a_boolean_fast_draft_is_refused_with_the_word_to_write(tmp_path: Path, value: str, word: str) -> None:
    message = refused(tmp_path, changed().replace('"fast_draft": "enabled"', f'"fast_draft": {value}'))
    assert f"fast_draft: write {word}, not {value}" in message


@pytest.mark.parametrize("value", ["on", "off", "yes", "no"])
def test_yes_and_on_are_words_and_not_modes(tmp_path: Path, value: str) -> None:
    message = refused(tmp_path, changed().replace('"fast_draft": "enabled"', f'"fast_draft": {value}'))
    assert "'enabled', 'disabled' or 'shadow'" in message
    assert f"(given: {value!r})" in message


def test_a_mistyped_mode_gets_the_nearest(tmp_path: Path) -> None:
    assert "did you mean 'shadow'?" in refused(tmp_path, changed(fast_draft="shadwo"))


@pytest.mark.parametrize("name", ["VLLM_API_KEY", "HF_TOKEN", "MY_SECRET", "DB_PASSWORD"])
def test_a_secret_has_no_place_in_a_profile(tmp_path: Path, name: str) -> None:
    message = refused(tmp_path, changed(env={name: "hunter2hunter2"}))
    assert name in message
    assert "hunter2" not in message


def test_our_own_variables_are_set_by_fields(tmp_path: Path) -> None:
    assert "the field fast_draft" in refused(tmp_path, changed(env={"RADIANCE_FAST_DRAFT": "1"}))


@pytest.mark.parametrize("name", ["HF_HOME", "HF_HUB_CACHE", "HF_ENDPOINT", "XDG_CACHE_HOME"])
def test_env_moves_nothing_that_the_launcher_reads_too(tmp_path: Path, name: str) -> None:
    """vLLM would look for the models where the launcher, `radiance fetch` and doctor did not."""
    assert f"{name} is for the launcher too" in refused(tmp_path, changed(env={name: "/x"}))


@pytest.mark.parametrize(
    ("args", "hint"),
    [
        ({"--block-size": 1}, "'block-size'"),
        ({"block_size": 1}, "'block-size'"),
        ({"speculative-config": "{}"}, "speculative and drafter"),
        ({"speculative-config.method": "mtp"}, "speculative and drafter"),
        ({"max-model-len": 1}, "max_model_len"),
        ({"tensor-parallel-size": 2}, "tensor_parallel_size"),
        ({"api-key": "x"}, "VLLM_API_KEY"),
        ({"port": 1}, "--port"),
        ({"hos": "1.2.3.4"}, "--host"),
        ({"uds": "/tmp/x"}, "--host and --port"),
        ({"ssl-keyfile": "/k"}, "plain HTTP"),
        ({"config": "more.yaml"}, "does not see"),
        ({"spec-tokens": 4}, "speculative and drafter"),
    ],
)
def test_args_are_long_names_that_no_other_field_sets(tmp_path: Path, args: dict[str, Any], hint: str) -> None:
    assert hint in refused(tmp_path, changed(args=args))


@pytest.mark.parametrize("model", [{}, {"id": "a/b", "path": "/m"}, {"path": "/m", "revision": "x"}])
def test_a_model_has_exactly_one_source(tmp_path: Path, model: dict[str, Any]) -> None:
    assert "model: " in refused(tmp_path, changed(model=model))


def test_a_draft_head_needs_a_drafter(tmp_path: Path) -> None:
    assert "no draft head to replace" in refused(tmp_path, changed(speculative=None))


@pytest.mark.parametrize("rerank", [0, 5000, "many"])
def test_rerank_is_a_sensible_number(tmp_path: Path, rerank: object) -> None:
    assert "rerank" in refused(tmp_path, changed(rerank=rerank))


def test_the_file_is_called_like_the_profile(tmp_path: Path) -> None:
    assert "the file is called tiny.yaml" in refused(tmp_path, changed(name="other"))


@pytest.mark.parametrize("text", ["", "a: [1", "- 1\n- 2\n", "\tx: 1"])
def test_what_is_no_mapping_is_a_profile_error(tmp_path: Path, text: str) -> None:
    refused(tmp_path, text)


def test_an_unknown_profile_gets_the_nearest_names() -> None:
    with pytest.raises(UnknownProfile, match=r"'smollm2-cp'; did you mean smollm2-cpu") as caught:
        profiles.find("smollm2-cp")
    assert caught.value.exit_code == 2


def test_a_users_folder_lies_over_the_catalogue(tmp_path: Path) -> None:
    text = json.loads(changed(name="smollm2-cpu", summary="mine"))
    (tmp_path / "smollm2-cpu.yaml").write_text(json.dumps(text))
    assert profiles.find("smollm2-cpu", tmp_path).summary == "mine"
    assert profiles.find("qwen3.8-27b-mtp", tmp_path).name == "qwen3.8-27b-mtp"
    assert not profiles.entries(tmp_path)["smollm2-cpu"].built_in


def test_numbers_in_env_become_text_and_booleans_do_not(tmp_path: Path) -> None:
    path = tmp_path / "tiny.yaml"
    path.write_text(changed(env={"OMP_NUM_THREADS": 1}))
    assert profiles.read(path).env == {"OMP_NUM_THREADS": "1"}
    assert "env.FLAG" in refused(tmp_path, changed(env={"FLAG": True}))


# What `extends` takes over, and from where.


def put(folder: Path, name: str, **values: Any) -> Path:
    path = folder / f"{name}.yaml"
    path.write_text(json.dumps({"schema_version": 1, "name": name, **values}))
    return path


def test_a_profile_that_extends_changes_key_by_key(tmp_path: Path) -> None:
    put(tmp_path, "mine", extends="smollm2-cpu", rerank=64, args={"dtype": None, "seed": 1}, env={"OMP_NUM_THREADS": 2})
    base, mine = profiles.find("smollm2-cpu"), profiles.find("mine", tmp_path)
    assert (mine.name, mine.rerank, mine.summary, mine.speculative) == ("mine", 64, base.summary, base.speculative)
    assert mine.args == {k: v for k, v in base.args.items() if k != "dtype"} | {"seed": 1}
    assert mine.env == {**base.env, "OMP_NUM_THREADS": "2"}


def test_what_was_verified_was_the_other_profile(tmp_path: Path) -> None:
    put(tmp_path, "mine", extends="smollm2-cpu")
    assert profiles.find("smollm2-cpu").verified != "no"
    assert profiles.find("mine", tmp_path).verified == "no"


def test_a_users_file_of_the_same_name_may_extend_the_one_it_lies_over(tmp_path: Path) -> None:
    put(tmp_path, "smollm2-cpu", extends="smollm2-cpu", max_num_seqs=2)
    found = profiles.find("smollm2-cpu", tmp_path)
    assert (found.max_num_seqs, found.max_model_len) == (2, 2048)


def test_a_chain_of_three_and_a_ring(tmp_path: Path) -> None:
    put(tmp_path, "a", extends="b", rerank=100)
    put(tmp_path, "b", extends="smollm2-cpu", rerank=99, max_num_seqs=3)
    assert (profiles.find("a", tmp_path).rerank, profiles.find("a", tmp_path).max_num_seqs) == (100, 3)
    put(tmp_path, "b", extends="a")
    with pytest.raises(ProfileError, match="in a ring: a -> b -> a"):
        profiles.find("a", tmp_path)


def test_an_unknown_base_names_the_place_and_the_nearest(tmp_path: Path) -> None:
    path = put(tmp_path, "a", extends="smollm2-cp")
    with pytest.raises(ProfileError, match=rf"{path}:1: extends: .*did you mean smollm2-cpu"):
        profiles.find("a", tmp_path)


def test_an_error_names_the_file_that_made_it(tmp_path: Path) -> None:
    put(tmp_path, "base", extends="smollm2-cpu", bogus=1)
    top = put(tmp_path, "top", extends="base", rerank="many")
    with pytest.raises(ProfileError) as caught:
        profiles.find("top", tmp_path)
    assert f"{tmp_path / 'base.yaml'}:1: 'bogus' is not a key" in str(caught.value)
    assert f"{top}:1: rerank" in str(caught.value)


def test_another_source_takes_the_old_revision_along(tmp_path: Path) -> None:
    put(tmp_path, "base", extends="smollm2-cpu", model={"id": "a/b", "revision": "r1"}, drafter={"id": "a/d"})
    put(tmp_path, "pinned", extends="base", drafter={"revision": "r2"})
    put(tmp_path, "moved", extends="base", model={"path": "/m"})
    assert profiles.find("pinned", tmp_path).drafter == sections.Drafter(id="a/d", revision="r2")
    assert profiles.find("moved", tmp_path).model == sections.Model(path=Path("/m"))


def test_no_speculation_is_two_nulls_away(tmp_path: Path) -> None:
    put(tmp_path, "plain", extends="smollm2-cpu", speculative=None, drafter=None, fast_draft="disabled", rerank=None)
    assert profiles.find("plain", tmp_path).speculative is None


def test_a_share_of_memory_replaces_a_pinned_kv_cache(tmp_path: Path) -> None:
    put(tmp_path, "mine", extends="smollm2-cpu", gpu_memory_utilization=0.5)
    found = profiles.find("mine", tmp_path)
    assert (found.gpu_memory_utilization, found.kv_cache_memory_bytes) == (0.5, None)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"rerank": 63, "drafter": {"id": "a/d", "selector_top_k": 16}}, "at least 4 x drafter.selector_top_k = 64"),
        ({"fast_draft": "shadow", "speculative": {"method": "mtp", "num_speculative_tokens": 1,
                                                  "draft_lm_head_quantization": "fp8"}}, "one head, one of them"),
        ({"fast_draft": "disabled", "speculative": {"method": "mtp", "num_speculative_tokens": 1,
                                                    "draft_lm_head_quantization": "fp8"}}, "set it to '0.33.0'"),
        ({"gpu_memory_utilization": 0.9, "kv_cache_memory_bytes": 1}, "both size the KV cache"),
        ({"min_vllm": "0.33.0", "max_vllm": "0.26.0"}, "max_vllm 0.26.0 is older than min_vllm 0.33.0"),
        ({"min_vllm": "new"}, "'new' is not a version"),
        ({"min_vllm": 0.3}, "valid string"),
        ({"model": {"id": "no-slash"}}, "model.id"),
        ({"draft_vocab": "ids.txt"}, "relative path"),
        ({"speculative": {"method": "mtpp", "num_speculative_tokens": 1}}, "did you mean 'mtp'?"),
        ({"speculative": {"method": "mtp", "num_speculative_token": 1}}, "did you mean 'num_speculative_tokens'?"),
        ({"speculative": {"method": "mtp", "num_speculative_tokens": 1, "options": {"model": "x"}}}, "profile's drafter"),
        ({"verified": [{"device": "x", "vllm": "0.33.0", "date": "2026-01-01"}]}, "'verified.0.evidence' is missing"),
        ({"accelerator": {"kinds": ["tpu"]}}, "accelerator.kinds.0"),
        ({"gpu_memory_utilization": 1.5}, "gpu_memory_utilization"),
    ],
)  # fmt: skip
def test_rules_between_fields(tmp_path: Path, change: dict[str, Any], said: str) -> None:
    assert said in refused(tmp_path, changed(**change))


def test_rerank_of_four_times_the_selector_is_enough(tmp_path: Path) -> None:
    put(tmp_path, "mine", extends="smollm2-cpu", rerank=64, drafter={"id": "a/d", "selector_top_k": 16})
    assert profiles.find("mine", tmp_path).rerank == 64


def test_the_json_schema_judges_files_as_the_models_do(tmp_path: Path) -> None:
    checker = jsonschema.Draft202012Validator(profiles.schema())
    jsonschema.Draft202012Validator.check_schema(profiles.schema())
    for entry in profiles.entries().values():
        data, _ = yamlfile.load(entry.path)
        assert list(checker.iter_errors(data)) == [], entry.name
    good = json.loads(changed())
    assert checker.is_valid(good)
    assert checker.is_valid({"schema_version": 1, "name": "a", "extends": "b"})
    for bad in ({"bogus": 1}, {"fast_draft": True}, {"rerank": 0}, {"schema_version": 2}, {"name": "Not-Lower"}):
        assert not checker.is_valid(good | bad), bad
    assert not checker.is_valid({k: v for k, v in good.items() if k != "model"})
    part = {"speculative": {"num_speculative_tokens": 2}, "rerank": None, "env": {"A": None}}
    assert not checker.is_valid(good | part)
    assert checker.is_valid({"schema_version": 1, "name": "a", "extends": "b", **part})
