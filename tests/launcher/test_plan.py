"""The plan: who wins, what is refused, and that no secret gets into anything printed."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import pytest

from launcher import plan, profiles
from launcher.errors import SettingsConflict, UsageProblem
from launcher.plan import Options, ServePlan
from radiance.settings import Mode, Require

HOME = {"HOME": "/home/me"}


def value_of(planned: ServePlan, option: str) -> str:
    return planned.argv[planned.argv.index(option) + 1]


def test_the_embedded_model_speculates_with_itself_offline() -> None:
    planned = plan.build(profiles.find("smollm2-cpu"), Options(), HOME)
    folder = "/home/me/.cache/radiance/models/smollm2-135m-instruct"
    assert planned.argv[:3] == ("vllm", "serve", folder)
    assert json.loads(value_of(planned, "--speculative-config")) == {
        "method": "draft_model",
        "model": folder,
        "num_speculative_tokens": 3,
    }
    assert "--enforce-eager" in planned.argv
    assert planned.env["HF_HUB_OFFLINE"] == "1"
    assert planned.env["RADIANCE_FAST_DRAFT"] == "1"
    assert planned.env["RADIANCE_DRAFT_RERANK"] == "48"
    assert planned.model_folders == (Path(folder),)


def test_xdg_cache_home_moves_the_model() -> None:
    planned = plan.build(profiles.find("smollm2-cpu"), Options(), HOME | {"XDG_CACHE_HOME": "/var/cache"})
    assert planned.model_folders == (Path("/var/cache/radiance/models/smollm2-135m-instruct"),)


def test_a_gated_model_without_a_token_is_told_beforehand() -> None:
    def told(**user: str) -> bool:
        planned = plan.build(profiles.stack("llama-3.1-8b-eagle3"), Options(), HOME | user)
        return any("meta-llama/Llama-3.1-8B-Instruct is gated" in note for note in planned.notes)

    assert told()
    assert not told(HF_TOKEN="hf_0123456789")
    assert not told(HF_TOKEN_FILE="/run/secrets/hf")


def test_a_hub_model_may_go_online_and_is_pinned(tiny: Any) -> None:
    planned = plan.build(tiny(model={"id": "a/b", "revision": "abc"}), Options(), HOME)
    assert "HF_HUB_OFFLINE" not in planned.env
    assert value_of(planned, "--revision") == "abc"
    assert planned.model_folders == ()


def test_a_drafter_of_its_own_goes_into_the_speculative_config(tiny: Any) -> None:
    profile = tiny(
        drafter={"id": "a/draft", "revision": "r1"},
        speculative={"method": "eagle3", "num_speculative_tokens": 2, "options": {"x": 1}},
    )
    planned = plan.build(profile, Options(), HOME)
    assert json.loads(value_of(planned, "--speculative-config")) == {
        "method": "eagle3",
        "num_speculative_tokens": 2,
        "x": 1,
        "model": "a/draft",
        "revision": "r1",
    }


def test_a_plan_is_a_value(tiny: Any) -> None:
    profile = tiny()
    assert plan.build(profile, Options(), HOME) == plan.build(profile, Options(), HOME)
    assert plan.build(profile, Options(), HOME) != plan.build(profile, Options(port=9000), HOME)


@pytest.mark.parametrize(
    ("value", "words"),
    [(True, ["--flag"]), (False, ["--no-flag"]), (3, ["--flag", "3"]), ([1, "b"], ["--flag", "1", "b"]),
     ({"a": 1}, ["--flag", '{"a": 1}']),
     (-1, ["--flag=-1"])],
)  # fmt: skip
def test_args_become_options(tiny: Any, value: object, words: list[str]) -> None:
    argv = list(plan.build(tiny(args={"flag": value}), Options(), HOME).argv)
    at = argv.index(words[0])
    assert argv[at : at + len(words)] == words


def test_the_environment_wins_over_the_profile_and_says_so(tiny: Any) -> None:
    user = HOME | {
        "RADIANCE_FAST_DRAFT": "0",
        "RADIANCE_DRAFT_RERANK": "16",
        "RADIANCE_REQUIRE": "fail",
        "OMP_NUM_THREADS": "8",
    }
    planned = plan.build(tiny(rerank=64, env={"OMP_NUM_THREADS": "1"}), Options(), user)
    assert (planned.mode, planned.rerank, planned.require) == (Mode.OFF, 16, Require.FAIL)
    assert planned.env["RADIANCE_DRAFT_RERANK"] == "16"
    assert planned.env["OMP_NUM_THREADS"] == "8"
    for name in ("RADIANCE_FAST_DRAFT=0", "RADIANCE_DRAFT_RERANK=16", "RADIANCE_REQUIRE=fail", "OMP_NUM_THREADS=8"):
        assert any(note.startswith(f"{name} from the environment wins over") for note in planned.notes), name


def test_an_environment_that_agrees_is_not_worth_a_note(tiny: Any) -> None:
    assert plan.build(tiny(rerank=64), Options(), HOME | {"RADIANCE_DRAFT_RERANK": "64"}).notes == ()


def test_an_empty_variable_is_an_unset_one(tiny: Any) -> None:
    planned = plan.build(tiny(), Options(), HOME | {"RADIANCE_FAST_DRAFT": "", "RADIANCE_DRAFT_RERANK": "  "})
    assert planned.mode is Mode.ON
    assert planned.rerank is None


@pytest.mark.parametrize(
    ("name", "value"), [("RADIANCE_FAST_DRAFTS", "1"), ("RADIANCE_FAST_DRAFT", "yes"), ("RADIANCE_DRAFT_RERANK", "0")]
)
def test_a_wrong_setting_is_named_with_78(tiny: Any, name: str, value: str) -> None:
    with pytest.raises(SettingsConflict, match=name) as caught:
        plan.build(tiny(), Options(), HOME | {name: value})
    assert caught.value.exit_code == 78


def test_service_links_are_ignored_with_one_warning_and_a_vllm_port_uri_is_dropped(tiny: Any) -> None:
    links = {
        "RADIANCE_SERVICE_HOST": "10.0.0.1",
        "RADIANCE_PORT_8000_TCP": "tcp://10.0.0.1:8000",
        "VLLM_PORT": "tcp://10.0.0.1:80",
    }
    planned = plan.build(tiny(), Options(), HOME | links)
    assert planned.unset == ("VLLM_PORT",)
    assert sum("RADIANCE_SERVICE_HOST" in note for note in planned.notes) == 1
    assert sum("VLLM_PORT" in note for note in planned.notes) == 1
    assert len(planned.notes) == 2


def test_a_real_vllm_port_stays(tiny: Any) -> None:
    assert plan.build(tiny(), Options(), HOME | {"VLLM_PORT": "29500"}).unset == ()


def test_an_argument_after_the_dashes_replaces_the_profiles(tiny: Any) -> None:
    profile = tiny(args={"block-size": 512, "enforce-eager": True, "dtype": "auto"})
    planned = plan.build(profile, Options(extra=("--block_size=1024", "--no-enforce-eager")), HOME)
    assert "512" not in planned.argv
    assert "--enforce-eager" not in planned.argv
    assert planned.argv[-2:] == ("--block_size=1024", "--no-enforce-eager")
    assert value_of(planned, "--dtype") == "auto"
    assert len(planned.notes) == 2


@pytest.mark.parametrize(
    ("extra", "said"),
    [
        (("--api-key", "s3cr3ts3cr3t"), "VLLM_API_KEY"),
        (("--api_key=s3cr3ts3cr3t",), "VLLM_API_KEY"),
        (("--api-k", "s3cr3ts3cr3t"), "VLLM_API_KEY"),
        (("--hf-token", "s3cr3ts3cr3t"), "HF_TOKEN"),
        (("--port", "1"), "--port before the --"),
        (("--host=::",), "--host before the --"),
        (("--hos", "1.2.3.4"), "--host before the --"),
        (("--ud=/tmp/x",), "--host and --port before the --"),
        (("--ssl-keyfile", "/k"), "plain HTTP"),
        (("--ssl_cert", "/k"), "plain HTTP"),
        (("--config", "more.yaml"), "of a profile"),
        (("--conf=more.yaml",), "of a profile"),
        (("--rev", "x"), "--set model.revision=VALUE"),
        (("--spec-tok", "5"), "num_speculative_tokens 3"),
        (("--speculative-config", "{}"), "num_speculative_tokens 3"),
        (("-sc", "{}"), "num_speculative_tokens 3"),
        (("--speculative-config.method", "mtp"), "num_speculative_tokens 3"),
        (("--spec-tokens", "5"), "num_speculative_tokens 3"),
        (("--model", "x"), "/models/tiny"),
        (("other-model",), "/models/tiny"),
        (("--tensor-parallel-size", "2"), "tensor_parallel_size of profile 'tiny' (1); use --set tensor_parallel_size"),
        (("-tp=2",), "use --set tensor_parallel_size=VALUE"),
        (("--tensor-paral", "2"), "tensor_parallel_size"),
        (("--max_model_len=9",), "--set max_model_len=VALUE"),
        (("--revision", "x"), "--set model.revision=VALUE"),
        (("--gpu-memory-utilization", "1"), "--set gpu_memory_utilization=VALUE"),
    ],
)
def test_a_conflict_names_both_sides_and_shows_no_secret(tiny: Any, extra: tuple[str, ...], said: str) -> None:
    with pytest.raises(UsageProblem) as caught:
        plan.build(tiny(), Options(extra=extra), HOME)
    assert said in str(caught.value)
    assert "s3cr3t" not in str(caught.value)


def test_options_that_begin_like_an_owned_one_or_like_a_secret_pass(tiny: Any) -> None:
    planned = plan.build(tiny(), Options(extra=("--max-log-len", "8192", "--ssl-ca-certs", "/k", "-r", "1")), HOME)
    assert planned.argv[-6:] == ("--max-log-len", "8192", "--ssl-ca-certs", "/k", "-r", "1")


def test_the_fields_of_the_engine_become_its_options(tiny: Any) -> None:
    profile = tiny(
        tensor_parallel_size=2,
        pipeline_parallel_size=1,
        max_model_len=512,
        gpu_memory_utilization=0.9,
        kv_cache_dtype="fp8",
        aliases=["a", "b"],
        tokenizer={"id": "t/t", "revision": "r"},
    )
    planned = plan.build(profile, Options(), HOME)
    for option, value in {
        "--tensor-parallel-size": "2",
        "--max-model-len": "512",
        "--gpu-memory-utilization": "0.9",
        "--kv-cache-dtype": "fp8",
        "--tokenizer": "t/t",
        "--tokenizer-revision": "r",
    }.items():
        assert value_of(planned, option) == value
    at = planned.argv.index("--served-model-name")
    assert planned.argv[at + 1 : at + 5] == ("tiny", "a", "b", "--tensor-parallel-size")
    assert not {"--pipeline-parallel-size", "--data-parallel-size", "--max-num-seqs"} & set(planned.argv)


@pytest.mark.parametrize("form", [plan.to_text, plan.to_json, plan.to_shell])
def test_no_form_shows_a_secret(tiny: Any, form: Any) -> None:
    secrets = {"HF_TOKEN": "hf_0123456789", "VLLM_API_KEY": 'sk-"quoted"-key', "AWS_SECRET_ACCESS_KEY": "abcdefgh"}
    # A user may repeat a secret where it does not belong: in a header option, or in a variable that a profile names.
    extra = ("--some-header", f"Bearer {secrets['HF_TOKEN']}")
    user = HOME | secrets | {"PLAIN": secrets["AWS_SECRET_ACCESS_KEY"]}
    text = form(plan.build(tiny(env={"PLAIN": "x"}), Options(extra=extra), user), user)
    assert "***" in text
    for value in secrets.values():
        assert value not in text
    assert "quoted" not in text


def test_the_shell_form_is_the_plan(tiny: Any) -> None:
    planned = plan.build(tiny(args={"x": {"a b": "$HOME"}}), Options(), HOME | {"VLLM_PORT": "tcp://1.1.1.1:1"})
    words = shlex.split(plan.to_shell(planned, HOME).replace("\\\n", " "))
    assert words[:3] == ["env", "-u", "VLLM_PORT"]
    assert tuple(words[-len(planned.argv) :]) == planned.argv
    assert dict(word.split("=", 1) for word in words[3 : -len(planned.argv)]) == dict(planned.env)


def test_the_json_form_is_the_plan(tiny: Any) -> None:
    planned = plan.build(tiny(), Options(), HOME)
    value = json.loads(plan.to_json(planned, HOME))
    assert tuple(value["argv"]) == planned.argv
    assert value["env"] == dict(planned.env)


def test_counters_of_an_earlier_vllm_are_kept_out(tiny: Any) -> None:
    planned = plan.build(tiny(), Options(), HOME | {"PROMETHEUS_MULTIPROC_DIR": "/metrics"})
    assert planned.unset == ("PROMETHEUS_MULTIPROC_DIR",)
    assert any("PROMETHEUS_MULTIPROC_DIR is dropped" in note for note in planned.notes)


def test_a_model_in_a_folder_with_a_tokenizer_of_the_hub_asks_the_hub(tiny: Any) -> None:
    assert plan.build(tiny(), Options(), HOME).env["HF_HUB_OFFLINE"] == "1"
    assert "HF_HUB_OFFLINE" not in plan.build(tiny(tokenizer={"id": "a/words"}), Options(), HOME).env
