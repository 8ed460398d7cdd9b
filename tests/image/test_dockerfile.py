"""The rules of the Dockerfile, read from its parsed instructions: what a review would have to look for each time."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import hcl2
import pytest
import stages
from stages import ROOT, TARGETS

from launcher import smollm2

each_target = pytest.mark.parametrize("target", TARGETS)
HOME = "/home/radiance"
CACHE = f"{HOME}/.cache"
#: variables that programs in the image ask before they write somewhere
CACHES = {
    "XDG_CACHE_HOME": CACHE,
    "HF_HOME": f"{CACHE}/huggingface",
    "VLLM_CACHE_ROOT": f"{CACHE}/vllm",
    "VLLM_CONFIG_ROOT": f"{CACHE}/vllm/config",
    "TRITON_CACHE_DIR": f"{CACHE}/triton",
    "TORCHINDUCTOR_CACHE_DIR": f"{CACHE}/inductor",
    "TORCH_EXTENSIONS_DIR": f"{CACHE}/torch_extensions",
    "TILELANG_CACHE_DIR": f"{CACHE}/tilelang",
    "NUMBA_CACHE_DIR": f"{CACHE}/numba",
}
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def test_hadolint() -> None:
    hadolint = Path(sys.executable).with_name("hadolint")
    done = subprocess.run([hadolint, "Dockerfile"], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


def test_every_engine_can_read_it() -> None:
    """A syntax line is fetched from a registry, and older engines take each line of a heredoc for an instruction."""
    assert not re.search(r"^#\s*syntax=", stages.text(), re.M | re.I)
    assert "<<" not in stages.text()


def test_the_default_is_cuda_and_every_target_is_there() -> None:
    found = list(stages.stages())
    assert found[-1] == "cuda"
    assert set(TARGETS) <= set(found)


def test_what_comes_from_outside_is_an_argument_pinned_where_its_digest_is_known() -> None:
    known = {*stages.stages(), "scratch"}
    outside = {stage.base for stage in stages.stages().values()} - known
    assert outside == {"${BASE_IMAGE}", "${ROCM_IMAGE}"}
    given = stages.arguments()
    assert re.fullmatch(r"debian:bookworm-\d{8}-slim@sha256:[0-9a-f]{64}", given["BASE_IMAGE"])
    assert re.fullmatch(r"vllm/vllm-openai-rocm:v\d+\.\d+\.\d+(@sha256:[0-9a-f]{64})?", given["ROCM_IMAGE"])
    head = stages.text().partition("ARG BASE_IMAGE")[0]
    assert "imagetools inspect" in head, "the comment on top says how to refresh a digest"


@each_target
def test_it_runs_as_nobody_under_tini(target: str) -> None:
    made = stages.merged(target)
    assert re.fullmatch(r"[1-9]\d*:0", made.all("USER")[-1]), "a number, so that Kubernetes can see it is not root"
    assert json.loads(made.all("ENTRYPOINT")[-1]) == ["/usr/bin/tini", "--", "radiance"]
    assert json.loads(made.all("CMD")[-1]) == ["--help"]
    assert made.all("STOPSIGNAL")[-1] == "SIGTERM"
    assert made.all("HEALTHCHECK")[-1].endswith('CMD ["radiance", "health"]')
    assert set(made.all("EXPOSE")[-1].split()) == {"8000", "9410"}
    assert made.all("WORKDIR")[-1] == HOME


@each_target
def test_any_user_of_group_0_can_write_to_one_folder_and_all_caches_lie_in_it(target: str) -> None:
    made = stages.merged(target)
    env = stages.pairs(made.all("ENV"))
    assert env["HOME"] == HOME
    assert {name: env.get(name) for name in CACHES} == CACHES
    assert env["FLASHINFER_WORKSPACE_BASE"] == HOME, "FlashInfer adds .cache/flashinfer itself"
    (line,) = [step for step in made.all("RUN") if "useradd" in step]
    assert f"--uid {made.all('USER')[-1].partition(':')[0]} --gid 0" in line
    assert f"chmod 775 {HOME} {CACHE}" in line


@each_target
def test_nobody_is_told_what_is_served(target: str) -> None:
    env = stages.pairs(stages.merged(target).all("ENV"))
    assert (env["VLLM_NO_USAGE_STATS"], env["DO_NOT_TRACK"], env["HF_HUB_DISABLE_TELEMETRY"]) == ("1", "1", "1")


def test_settings_of_the_two_lines_are_the_same() -> None:
    """An ENV cannot be shared between images with different bases, so it stands there twice."""
    own = {"PATH", "CUDA_CACHE_PATH"}  # rocm keeps its base's PATH
    runtime = stages.pairs(stages.stages()["runtime"].all("ENV"))
    rocm = stages.pairs(stages.stages()["rocm"].all("ENV"))
    assert {name: value for name, value in runtime.items() if name not in own} == rocm


def test_no_radiance_variable_is_set() -> None:
    """The launcher refuses unknown RADIANCE_* names, and one of ours in the image would beat every profile."""
    for stage in stages.stages().values():
        names = [*stages.pairs(stage.all("ENV")), *(value.partition("=")[0] for value in stage.all("ARG"))]
        assert not [name for name in names if name.startswith("RADIANCE_")]


def test_no_secret_can_get_in() -> None:
    secret = re.compile(r"TOKEN|PASSWORD|SECRET|API_KEY|CREDENTIAL", re.I)
    for stage in stages.stages().values():
        for instruction, value in stage.steps:
            assert not secret.search(value), f"{stage.name}: {instruction} {value}"


def test_every_package_is_checked_and_no_cache_stays() -> None:
    seen = 0
    for stage in stages.stages().values():
        for step in stage.all("RUN"):
            for command in re.split(r"&&|;", step):
                if not re.search(r"\bpip (install|wheel)\b|install\.sh ", command):
                    continue
                seen += 1
                checked = re.search(r"--require-hashes|--no-index|--no-build-isolation|install\.sh ", command)
                assert checked, f"{stage.name}: {command}"
                assert "--no-cache-dir" in command, f"{stage.name}: {command}"
            if "apt-get install" in step:
                assert "--no-install-recommends" in step
                assert "rm -rf /var/lib/apt/lists/*" in step, f"{stage.name}: in the same layer, or it does not help"
    assert seen >= 6
    assert "--require-hashes" in (ROOT / "deploy/cpu/install.sh").read_text()


@each_target
def test_the_compiler_stays(target: str) -> None:
    """Triton builds its launchers at run time; images without a compiler fail at the first request."""
    made = " ".join(stages.merged(target).all("RUN"))
    assert {"gcc", "libc6-dev", "tini"} <= set(made.split())
    assert not re.search(r"apt-get (purge|remove|autoremove)", made)
    if target != "rocm":  # its base has them
        assert {"g++", "python3-dev"} <= set(made.split())


@each_target
def test_the_plugin_is_the_last_layer_and_what_was_installed_is_checked(target: str) -> None:
    steps = stages.stages()[target].steps
    plugin = steps.index(("COPY", "--from=plugin /dist /opt/radiance/dist"))
    after = [step for step in steps[plugin + 1 :] if step[0] in ("RUN", "COPY", "ADD")]
    assert len(after) == 1
    kind, command = after[0]
    assert kind == "RUN"
    assert "install --no-cache-dir --no-deps --no-index /opt/radiance/dist/" in command
    assert f"check.py --vllm ${{VLLM_VERSION}} --plugin ${{PLUGIN_VERSION}} --accelerator {target}" in command


@each_target
def test_labels(target: str) -> None:
    labels = stages.pairs(stages.merged(target).all("LABEL"))
    image = "org.opencontainers.image"
    for name in ("title", "description", "licenses", "version", "revision"):
        assert labels[f"{image}.{name}"]
    assert labels["radiance.vllm.version"] == "${VLLM_VERSION}"
    assert labels["radiance.accelerator"] == target
    assert labels["radiance.accelerator.version"]
    assert (labels.get("radiance.purpose") == "tests") == (target == "cpu")
    if target == "cpu":
        assert "Not a product" in labels[f"{image}.description"]


def test_the_build_sees_only_what_it_copies() -> None:
    rules = [line for line in (ROOT / ".dockerignore").read_text().splitlines() if line and not line.startswith("#")]
    assert rules[0] == "*"
    let_in = {rule[1:] for rule in rules if rule.startswith("!")}
    copied = set()
    for stage in stages.stages().values():
        for value in stage.all("COPY"):
            if "--from=" not in value:
                copied |= set(value.split()[:-1])
    assert all((ROOT / name).exists() for name in copied | let_in)
    assert let_in <= copied
    assert all(any(name == rule or name.startswith(f"{rule}/") for rule in let_in) for name in copied)


def test_versions_are_the_same_wherever_they_stand() -> None:
    def default(stage: str, name: str) -> str:
        (found,) = [v for v in stages.stages()[stage].all("ARG") if v.startswith(f"{name}=")]
        return str(found.partition("=")[2])

    cuda, cpu = (ROOT / f"deploy/{name}.lock" for name in ("image/cuda", "cpu/requirements"))
    assert f"\nvllm=={default('cuda', 'VLLM_VERSION')} " in cuda.read_text()
    assert f"\nvllm-cpu=={default('cpu', 'VLLM_VERSION').partition('+')[0]} " in cpu.read_text()
    assert stages.arguments()["ROCM_IMAGE"].partition("@")[0].endswith(f":v{default('rocm', 'VLLM_VERSION')}")
    assert f"\n{smollm2.PACKAGE} " in (ROOT / "deploy/cpu/smollm2.lock").read_text()
    assert stages.arguments()["PLUGIN_VERSION"] == PROJECT["version"]


@pytest.mark.parametrize("lock", ["image/cuda", "cpu/requirements"])
def test_a_lock_has_all_that_the_launcher_needs_and_a_hash_for_each(lock: str) -> None:
    from packaging.requirements import Requirement

    lines = (ROOT / f"deploy/{lock}.lock").read_text().splitlines()[1:]
    assert all(re.fullmatch(r"[a-z0-9-]+==\S+ --hash=sha256:[0-9a-f]{64}", line) for line in lines)
    pinned = dict(line.split()[0].split("==") for line in lines)
    for text in PROJECT["dependencies"]:
        need = Requirement(text)
        name = re.sub(r"[-_.]+", "-", need.name).lower()
        assert need.specifier.contains(pinned[name]), f"{text}, locked is {pinned[name]}"


def blocks(kind: str) -> dict[str, dict[str, Any]]:
    """Blocks of docker-bake.hcl by name; strings keep the quotes they have there."""
    parsed = hcl2.loads((ROOT / "docker-bake.hcl").read_text())
    return {name.strip('"'): body for block in parsed[kind] for name, body in block.items()}


def test_bake_builds_every_target_and_never_publishes_the_test_image() -> None:
    targets, groups = blocks("target"), blocks("group")
    for target in TARGETS:
        assert targets[target]["target"] == f'"{target}"'
        assert targets[target]["inherits"] == ['"common"']
    assert groups["default"]["targets"] == ['"cuda"']
    assert groups["release"]["targets"] == ['"cuda"', '"rocm"']
    given = {
        *stages.arguments(),
        *(value.partition("=")[0] for s in stages.stages().values() for value in s.all("ARG")),
    }
    assert set(targets["common"]["args"]) - {"__comments__", "__inline_comments__"} <= given
