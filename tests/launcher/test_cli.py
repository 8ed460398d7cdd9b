"""The command: exit codes and what it prints, in process and as a real command."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import click
import pytest
from click.testing import CliRunner, Result
from serving import ROOT, profile_text

from launcher import report
from launcher.cli import main
from tests.processes import free_port


def run(*argv: str) -> Result:
    return CliRunner().invoke(main, list(argv))


def test_profiles_list_shows_what_is_verified() -> None:
    result = run("profiles", "list")
    assert result.exit_code == 0
    rows = {line.split()[0]: line.split()[1] for line in result.stdout.splitlines()}
    assert rows["smollm2-cpu"] == "yes"
    assert rows["qwen3.8-27b-mtp"] == "no"


def test_profiles_list_shows_the_rest_beside_a_wrong_file(tmp_path: Path) -> None:
    (tmp_path / "tiny.yaml").write_text(profile_text(tmp_path, bogus=1))
    result = run("profiles", "list", "--profiles-dir", str(tmp_path))
    assert result.exit_code == 65
    rows = {line.split()[0]: line for line in result.stdout.splitlines()}
    assert "'bogus' is not a key" in rows["tiny"]
    assert "yes" in rows["smollm2-cpu"]
    result = run("profiles", "list", "--json", "--profiles-dir", str(tmp_path))
    assert result.exit_code == 65
    problems = {row["name"]: row["problem"] for row in json.loads(result.stdout)["profiles"]}
    assert "'bogus'" in problems.pop("tiny")
    assert set(problems.values()) == {""}


def test_profiles_show_fills_in_defaults() -> None:
    shown = json.loads(run("profiles", "show", "qwen3.8-27b-mtp").stdout)
    assert shown["model"]["id"] == "Qwen/Qwen3.8-27B"
    assert shown["require"] == "warn"


def test_the_catalogue_validates_as_ci_runs_it() -> None:
    result = run("profiles", "validate")
    assert result.exit_code == 0, result.output
    total = len(list((ROOT / "launcher/catalog").glob("*.yaml")))
    assert result.stdout == f"{total} of {total} profiles are valid\n"
    assert "warning: model.revision is not pinned: Qwen/Qwen3.8-27B" in result.stderr
    assert "smollm2-cpu" not in result.stderr


def test_validate_tells_of_every_bad_file_with_65(tmp_path: Path) -> None:
    (tmp_path / "tiny.yaml").write_text(profile_text(tmp_path, bogus=1))
    (tmp_path / "other.yaml").write_text("schema_version: 1\nname: other\nextends: nobody\n")
    result = run("profiles", "validate", "--profiles-dir", str(tmp_path))
    assert result.exit_code == 65
    assert "tiny.yaml:" in result.stderr
    assert "'bogus' is not a key" in result.stderr
    assert "other.yaml:3: extends: there is no profile 'nobody'" in result.stderr
    (one,) = json.loads(run("profiles", "validate", "--json", str(tmp_path / "tiny.yaml")).stdout)
    assert "'bogus'" in one["problem"]
    assert run("profiles", "validate", str(ROOT / "launcher/catalog/smollm2-cpu.yaml")).exit_code == 0


def test_schema_prints_the_json_schema() -> None:
    value = json.loads(run("profiles", "schema").stdout)
    assert value["properties"]["rerank"]
    assert value["additionalProperties"] is False


@pytest.mark.parametrize(("sets", "code"), [("min_vllm='99.0'", 69), ("max_vllm='0.1'", 2), ("min_vllm='0.1'", None)])
def test_serve_refuses_a_vllm_that_the_profile_does_not_allow(
    sets: str, code: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    from launcher import supervise

    monkeypatch.setattr(supervise, "serve", lambda engine, environ, signals: None)
    result = run("--profile", "smollm2-cpu", "--set", sets, "--port", str(free_port()), "--metrics-port", "0")
    assert result.exit_code == (code or 0), result.output


@pytest.mark.parametrize(
    "argv", [("plan", "--profile", "smollm2-cp"), ("profiles", "show", "smollm2-cp"), ("--profile", "smollm2-cp")]
)
def test_an_unknown_profile_is_2_with_the_nearest(argv: tuple[str, ...]) -> None:
    result = run(*argv)
    assert result.exit_code == 2
    assert "did you mean smollm2-cpu?" in result.stderr


def test_plan_prints_in_three_forms() -> None:
    assert "vllm serve" in run("plan", "--profile", "smollm2-cpu").stdout
    assert json.loads(run("plan", "--profile", "smollm2-cpu", "--format", "json").stdout)["argv"][1] == "serve"
    assert run("plan", "--profile", "smollm2-cpu", "--format", "shell").stdout.startswith("env ")


def test_plan_shows_no_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_0123456789")
    for form in ("text", "json", "shell"):
        result = run("plan", "--profile", "smollm2-cpu", "--format", form, "--", "--x", "hf_0123456789")
        assert result.exit_code == 0
        assert "hf_0123456789" not in result.output


def test_a_bad_profile_is_65(tmp_path: Path) -> None:
    (tmp_path / "tiny.yaml").write_text(profile_text(tmp_path, bogus=1))
    result = run("plan", "--profile", "tiny", "--profiles-dir", str(tmp_path))
    assert result.exit_code == 65
    assert "'bogus' is not a key" in result.stderr


def test_an_unknown_setting_is_78(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RADIANCE_FASTDRAFT", "1")
    result = run("plan", "--profile", "smollm2-cpu")
    assert result.exit_code == 78
    assert "did you mean RADIANCE_FAST_DRAFT?" in result.stderr


@pytest.mark.parametrize(
    "argv",
    [
        ("plan",),
        ("plan", "--profile", "smollm2-cpu", "--bogus"),
        ("bogus",),
        ("plan", "--profile", "smollm2-cpu", "--", "--api-key", "x"),
    ],
)
def test_a_usage_error_is_2(argv: tuple[str, ...]) -> None:
    assert run(*argv).exit_code == 2


def test_fetch_offline_of_the_embedded_model_only_looks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv("SMOLLM2_FOLDER", raising=False)
    result = run("fetch", "--profile", "smollm2-cpu", "--offline")
    assert result.exit_code == 66
    assert "model smollm2-135m-instruct is not complete in" in result.stderr
    assert list(tmp_path.iterdir()) == []


def test_help_is_the_groups_and_not_serves() -> None:
    assert "profiles" in run("--help").stdout
    assert run("-h").exit_code == 0


def test_version_names_both() -> None:
    result = run("version")
    assert result.exit_code == 0
    assert "radiance-vllm" in result.stdout
    assert "vllm" in result.stdout


def test_health_of_nothing_is_1() -> None:
    result = run("health", "--port", str(free_port()))
    assert result.exit_code == 1
    assert "no launcher answers" in result.stderr


def command(*argv: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "launcher", *argv], capture_output=True, text=True)


def test_the_real_command_ends_with_these_codes_too() -> None:
    assert command("--profile", "smollm2-cp").returncode == 2
    assert command("plan", "--profile", "smollm2-cpu").returncode == 0


@pytest.mark.parametrize("verb", ["accuracy", "tune", "vocab", "bench"])
def test_measuring_verbs_are_modules_of_radiance_and_end_with_their_code(verb: str, tmp_path: Path) -> None:
    """Run under the same Python, options as they are (--help too), exit code and all."""
    package = tmp_path / "radiance"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / f"{verb}.py").write_text("import sys; print(sys.executable, sys.argv[1:]); sys.exit(len(sys.argv))")
    for options in (["--help"], ["--model", "a b", "-x", "", "--rerank=1,8"], []):
        argv = [sys.executable, "-m", "launcher", verb, *options]
        env = {**os.environ, "PYTHONPATH": f"{tmp_path}"}
        done = subprocess.run(argv, capture_output=True, text=True, cwd=tmp_path, env=env)
        assert done.stdout == f"{sys.executable} {options}\n", done.stderr
        assert done.returncode == 1 + len(options)


def test_plan_needs_neither_vllm_nor_torch_nor_a_model(tmp_path: Path) -> None:
    """Any import of them fails here, as on a laptop that has neither."""
    for name in ("vllm", "torch", "transformers", "triton"):
        (tmp_path / f"{name}.py").write_text(f"raise ImportError('{name} must not be imported by the launcher')")
    code = (
        "import pkgutil, importlib, launcher\n"
        "for module in pkgutil.iter_modules(launcher.__path__, 'launcher.'):\n"
        "    if module.name != 'launcher.__main__': importlib.import_module(module.name)\n"
        "from launcher.cli import main\n"
        "main(['plan', '--profile', 'smollm2-cpu'])"
    )
    env = {"PATH": "/usr/bin:/bin", "HOME": str(tmp_path), "PYTHONPATH": f"{tmp_path}:{ROOT}"}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "vllm serve" in done.stdout


def test_help_imports_nothing_but_click_and_the_standard_library() -> None:
    """What makes it quick: 0.2 s on a busy machine, most of it Python's own start."""
    code = (
        "import sys; from launcher.cli import main\n"
        "try: main(['--help'])\n"
        "except SystemExit: pass\n"
        "names = {name.split('.')[0] for name in sys.modules} - sys.stdlib_module_names\n"
        "print('LOADED', *sorted(name for name in names if not name.startswith('_')))"
    )
    # -S leaves out what site-packages load by themselves; click is found by its path.
    env = {**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{Path(click.__file__).parents[1]}"}
    done = subprocess.run([sys.executable, "-S", "-c", code], capture_output=True, text=True, env=env)
    assert "Commands:" in done.stdout, done.stderr
    assert done.stdout.splitlines()[-1].split() == ["LOADED", "click", "launcher"]


def test_health_of_a_server_that_still_loads_is_1_and_says_so(serve) -> None:  # type: ignore[no-untyped-def]
    served = serve(fake="hang")
    served.wait_phase("loading")
    done = command("health", "--port", str(served.metrics_port))
    assert done.returncode == 1
    assert "phase is loading" in done.stdout


def test_health_of_a_ready_server_is_0_and_of_a_stopping_one_1(serve) -> None:  # type: ignore[no-untyped-def]
    served = serve()
    served.wait_ready()
    assert command("health", "--port", str(served.metrics_port)).returncode == 0
    served.stop()
    assert command("health", "--port", str(served.metrics_port)).returncode == 1


def test_no_command_line_or_log_of_a_server_shows_a_secret(serve, monkeypatch: pytest.MonkeyPatch) -> None:  # type: ignore[no-untyped-def]
    monkeypatch.setenv("VLLM_API_KEY", "sk-0123456789abcdef")
    served = serve()
    served.wait_ready()
    assert served.seen()["env"]["VLLM_API_KEY"] == "sk-0123456789abcdef"
    for pid in (served.process.pid, *served.seen()["pids"], served.status()["engine"]["pid"]):
        assert b"sk-0123" not in Path(f"/proc/{pid}/cmdline").read_bytes()
    for path in ("/status", "/metrics"):
        assert "sk-0123" not in served.get(path).text
    served.stop()
    assert "sk-0123" not in served.log


def test_status_of_nothing_is_1() -> None:
    result = run("status", "--port", str(free_port()))
    assert result.exit_code == 1
    assert "no launcher answers" in result.stderr


def test_status_is_one_screen_or_all_of_it(serve) -> None:  # type: ignore[no-untyped-def]
    served = serve(expected={"acceptance_per_draft_min": 2.5})
    served.wait_ready()
    done = command("status", "--port", str(served.metrics_port))
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert "phase     ready, ready" in lines
    assert "draft     mode on, ok: rank 0 lm_head: active" in lines
    assert "head      rank 0 lm_head: ACTIVE (fake), 0 calls" in lines
    assert "accepted  2.00 tokens per draft over 20 drafts, too few to compare with the profile's 2.5" in lines
    everything = command("status", "--json", "--port", str(served.metrics_port))
    assert json.loads(everything.stdout)["acceptance"]["drafts"] == 20


@pytest.mark.parametrize(("drafts", "said"), [(199, "too few to compare with"), (200, "BELOW")])
def test_status_judges_acceptance_from_enough_drafts_on(drafts: int, said: str) -> None:
    found = {"available": True, "drafts": drafts, "acceptance_per_draft": 2.0, "expected_min": 2.5}
    assert report.accepted(found) == f"2.00 tokens per draft over {drafts} drafts, {said} the profile's 2.5"


def test_status_of_a_server_that_is_not_ready_is_1_and_says_why(serve) -> None:  # type: ignore[no-untyped-def]
    served = serve(fake="head=declined", require="ready")
    served.wait_phase("degraded")
    done = command("status", "--port", str(served.metrics_port))
    assert done.returncode == 1
    assert "phase     degraded, not ready: the profile requires the 2-bit draft head" in done.stdout
    assert "NOT AS ASKED" in done.stdout
    assert "DECLINED (fake)" in done.stdout
