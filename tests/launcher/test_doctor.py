"""`radiance doctor`: every finding from the facts that make it, and the whole of it on the machine the tests run on."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
import types
from pathlib import Path
from typing import Any

import hub as hubs
import pytest
from click.testing import CliRunner
from hub import Repo
from serving import ROOT, profile_text

from launcher import cachedirs, checks, machine, plan, profiles, surroundings
from launcher.checks import Finding, Verdict, software
from launcher.cli import main
from launcher.fetch import Repository
from launcher.machine import GIB, Device, Machine
from launcher.plan import Options, ServePlan
from launcher.sections import Kind
from launcher.surroundings import Answer, Folder, Surroundings

H200 = Device(Kind.NVIDIA, "NVIDIA H200", 141 * GIB, 140 * GIB, "9.0")
L4 = Device(Kind.NVIDIA, "NVIDIA L4", 22 * GIB, 22 * GIB, "8.9")
R9700 = Device(Kind.AMD, "AMD Radeon AI PRO R9700", 32 * GIB, 31 * GIB, "gfx1201")
HOME = {"HOME": "/home/me"}
GOOD = Surroundings(
    environ={},
    machine=Machine((H200,), "580.159.03", (13, 0)),
    uid=1000,
    gids=(1000, 44),
    shm=8 * GIB,
    kfd=None,
    folders=tuple(Folder(name, Path("/c") / name, "", 500 * GIB) for name in cachedirs.PLACES),
    compiler="/usr/bin/gcc",
    triton=("3.9.0", ""),
    plugins=("radiance",),
    vllm="0.33.0",
    seams=(),
    cuda_runtime=(13, 0),
    cuda_init=0,
    hub=(Answer(Repository("model", "Qwen/Qwen3.8-27B", None), 200),),
    cached=(),
    now=1_790_000_000.0,
)


def planned(name: str = "qwen3.8-27b-mtp", *sets: str, **user: str) -> ServePlan:
    return plan.build(profiles.stack(name), Options(sets=sets), HOME | user)


def found(plan: ServePlan | None = None, **change: Any) -> dict[str, list[Finding]]:
    """Findings by code, of a good machine but for `change`."""
    result: dict[str, list[Finding]] = {}
    for finding in checks.run(dataclasses.replace(GOOD, **change), plan):
        result.setdefault(finding.code, []).append(finding)
    return result


def only(code: str, plan: ServePlan | None = None, **change: Any) -> Finding:
    """The one bad finding; all other codes must be good."""
    bad = [f for findings in found(plan, **change).values() for f in findings if f.verdict is not Verdict.OK]
    assert [f.code for f in bad] == [code], bad
    assert bad[0].fix
    return bad[0]


def test_a_good_machine_has_nothing_to_mend_and_every_check_speaks() -> None:
    findings = found(planned(), kfd=(44, True))
    assert all(f.verdict is Verdict.OK for group in findings.values() for f in group)
    assert set(findings) == set(checks.CHECKS) - {"R15", "R16"}


@pytest.mark.parametrize(
    ("sets", "machine", "said"),
    [
        ((), Machine(), "needs 1 nvidia or amd accelerator, has none"),
        (("tensor_parallel_size=4",), Machine((H200, H200), "580", (13, 0)), "needs 4 nvidia or amd accelerators, has 2"),
        ((), Machine((L4,), "580", (13, 0)), "needs 64 GiB on each accelerator, has 22"),
        (("accelerator.compute_capability_min='9.0'", "accelerator.memory_gib_min=null"), Machine((L4,), "580", (13, 0)),
         "needs compute capability 9.0, NVIDIA L4 has 8.9"),
        (("accelerator.gfx=[gfx942]", "accelerator.memory_gib_min=null"), Machine((R9700,)),
         "needs gfx942, AMD Radeon AI PRO R9700 is gfx1201"),
        (("accelerator.kinds=[amd]",), Machine((H200,), "580", (13, 0)), "needs 1 amd accelerator, has none"),
    ],
)  # fmt: skip
def test_accelerators_that_do_not_fit(sets: tuple[str, ...], machine: Machine, said: str) -> None:
    bad = [f for f in found(planned("qwen3.8-27b-mtp", *sets), machine=machine)["R01"] if f.verdict is Verdict.FAIL]
    assert [said in f.text for f in bad] == [True]


def test_the_best_accelerators_count() -> None:
    assert machine.misfits(planned().settled.profile, Machine((L4, H200))) == []


def test_a_card_sold_as_64_gb_reports_a_little_less() -> None:
    for size, fits in ((62.1, True), (62.0, False)):
        card = dataclasses.replace(H200, memory=round(size * GIB))
        assert (machine.misfits(planned().settled.profile, Machine((card,))) == []) is fits


def test_a_driver_too_old_for_the_libraries_names_the_one_to_install() -> None:
    old = Machine((H200,), "550.54", (12, 4))
    finding = only("R02", planned(), machine=old)
    assert "driver 550.54 speaks CUDA 12.4, the libraries here are CUDA 13.0" in finding.text
    assert "580.65.06" in finding.fix
    assert found(planned(), machine=old, cuda_runtime=(12, 9))["R02"][0].verdict is Verdict.OK


@pytest.mark.parametrize(
    ("code", "said"), [(803, "reboot the host"), (804, "cuda/compat"), (802, "fabric manager"), (12345, "look up")]
)
def test_cuda_errors_are_put_into_words(code: int, said: str) -> None:
    finding = only("R03", planned(), cuda_init=code)
    assert finding.text.startswith(f"CUDA error {code}")
    assert said in finding.fix


def test_no_cuda_device_is_no_error_where_there_is_no_gpu() -> None:
    assert only("R03", planned("smollm2-cpu"), cuda_init=100, machine=Machine(), hub=()).verdict is Verdict.WARN


def test_memory_that_something_else_holds() -> None:
    busy = dataclasses.replace(H200, free=30 * GIB)
    assert (
        "30.0 of 141.0 GiB are free, vLLM will ask for 90%"
        in only("R04", planned(), machine=Machine((busy,), "580", (13, 0))).text
    )
    assert (
        found(planned("qwen3.8-27b-mtp", "gpu_memory_utilization=0.2"), machine=Machine((busy,)))["R04"][0].verdict
        is Verdict.FAIL
    )


def test_memory_that_cannot_hold_one_sequence() -> None:
    finding = only("R04", planned("qwen3.8-27b-mtp", "max_model_len=2000000"))
    assert "one sequence of max_model_len" in finding.text


def test_shared_memory_names_the_flag_for_docker_and_kubernetes() -> None:
    finding = only(
        "R05",
        planned("qwen3.8-27b-mtp", "tensor_parallel_size=2"),
        shm=64 << 20,
        machine=Machine((H200, H200), "580", (13, 0)),
    )
    assert "--shm-size=2g" in finding.fix
    assert "sizeLimit 2Gi" in finding.fix
    assert only("R05", planned(), shm=None).verdict is Verdict.FAIL


def test_a_read_only_cache_is_fine_once_it_is_whole() -> None:
    folders = tuple(
        dataclasses.replace(f, problem="Read-only file system (x)") if f.name == "HF_HOME" else f for f in GOOD.folders
    )
    assert only("R06", planned(), folders=folders).verdict is Verdict.FAIL
    finding = only("R06", planned(), folders=folders, cached=("Qwen/Qwen3.8-27B",), hub=())
    assert finding.verdict is Verdict.WARN
    assert "HF_HUB_OFFLINE=1" in finding.fix


def test_a_folder_is_really_tried(tmp_path: Path) -> None:
    assert surroundings.folder("X", tmp_path / "not" / "there").problem == ""
    assert list(tmp_path.iterdir()) == []
    problem = surroundings.folder("X", Path("/proc/nowhere")).problem
    assert "/proc belongs to 0:0" in problem


def test_a_disk_too_small_for_what_is_missing() -> None:
    folders = tuple(dataclasses.replace(f, free=10 * GIB) for f in GOOD.folders)
    assert "10 GiB free, the profile fetches about 52" in only("R07", planned(), folders=folders).text
    assert "R07" not in found(planned(), folders=folders, cached=("Qwen/Qwen3.8-27B",), hub=())


def test_kfd_names_the_group_and_both_flags() -> None:
    finding = only("R08", planned(), kfd=(992, False))
    assert finding.text == "/dev/kfd belongs to group 992; this process has 1000, 44"
    assert "--group-add 992" in finding.fix
    assert "supplementalGroups: [992]" in finding.fix


def test_no_compiler_and_no_triton() -> None:
    assert "gcc" in only("R09", planned(), compiler="").fix
    assert only("R10", planned(), triton=("", "")).verdict is Verdict.FAIL
    assert "libcuda" in only("R10", planned(), triton=("", "ImportError: libcuda")).text
    assert "R10" not in found(planned("smollm2-cpu"), triton=("", ""), machine=Machine(), hub=())


def test_the_plugin_must_be_found_unless_the_head_is_off() -> None:
    assert only("R11", planned(), plugins=()).verdict is Verdict.FAIL
    assert only("R11", planned("gemma-4-31b", "tensor_parallel_size=1"), plugins=(), hub=(
        Answer(Repository("model", "google/gemma-4-31B-it", None), 200),)).verdict is Verdict.WARN  # fmt: skip
    assert "leaves the plugin out" in only("R11", planned(), environ={"VLLM_PLUGINS": "other"}).text
    assert found(planned(), environ={"VLLM_PLUGINS": "other,radiance"})["R11"][0].verdict is Verdict.OK


@pytest.mark.parametrize(
    ("name", "version", "good"),
    [("qwen3.8-27b-mtp", "0.25.1", False), ("qwen3.8-27b-mtp", "0.26.0", True), ("qwen3.8-27b-dflash2", "0.27.1", False),
     ("qwen3.8-27b-dflash2", "0.28.0+cu130", True), ("qwen3.8-27b-mtp", "", False)],
)  # fmt: skip
def test_vllm_within_the_profiles_range(name: str, version: str, good: bool) -> None:
    finding = found(planned(name), vllm=version)["R12"][0]
    assert (finding.verdict is Verdict.OK) is good
    high = found(planned(name, "max_vllm='0.29.0'"), vllm="0.33.0")["R12"][0]
    assert high.verdict is Verdict.FAIL


def test_a_vllm_that_lacks_a_seam() -> None:
    assert (
        "LogitsProcessor._apply_head is gone"
        in only("R13", planned(), seams=("x.py: LogitsProcessor._apply_head is gone",)).text
    )


@pytest.mark.parametrize(
    ("status", "text", "verdict", "fix"),
    [(0, "timed out", Verdict.FAIL, "HF_ENDPOINT"), (401, "", Verdict.FAIL, "set HF_TOKEN"),
     (403, "GatedRepo", Verdict.FAIL, "accept its terms"),
     (404, "", Verdict.FAIL, "correct the profile"), (503, "", Verdict.WARN, "later")],
)  # fmt: skip
def test_what_the_hub_says(status: int, text: str, verdict: Verdict, fix: str) -> None:
    finding = only("R14", planned(), hub=(Answer(Repository("model", "Qwen/Qwen3.8-27B", None), status, text),))
    assert finding.verdict is verdict
    assert fix in finding.fix


def test_offline_without_the_model_fails() -> None:
    assert "nobody may ask the hub" in only("R14", planned(), hub=()).text


def test_service_links_wrong_settings_the_metrics_folder_and_the_clock() -> None:
    assert "did you mean RADIANCE_FAST_DRAFT?" in only("R15", environ={"RADIANCE_FASTDRAFT": "1"}).text
    assert "VLLM_PORT" in only("R15", environ={"VLLM_PORT": "tcp://10.0.0.1:80", "VLLM_HOST_IP": "10.0.0.1"}).text
    assert "PROMETHEUS_MULTIPROC_DIR" in only("R15", environ={"PROMETHEUS_MULTIPROC_DIR": "/x"}).text
    assert only("R16", now=0.0).verdict is Verdict.FAIL


def test_the_command_here_as_text_and_json() -> None:
    """A real run: this machine has a compiler, vLLM with all seams, the plugin, and no GPU."""
    command = [sys.executable, "-m", "launcher", "doctor", "--profile", "smollm2-cpu", "--json", "--offline"]
    done = subprocess.run(command, capture_output=True, text=True)
    value = json.loads(done.stdout)
    by_code = {finding["code"]: finding for finding in value["findings"]}
    assert by_code["R13"]["verdict"] == "ok"
    assert by_code["R09"]["verdict"] == "ok"
    assert (done.returncode == 0) is value["ok"]
    assert value["ok"] is all(finding["verdict"] != "fail" for finding in value["findings"])
    text = subprocess.run([c for c in command if c != "--json"], capture_output=True, text=True).stdout
    assert "R13  OK" in text


def test_a_profile_that_does_not_fit_is_exit_1_with_the_reason() -> None:
    if machine.look({}).devices:
        pytest.skip("this machine has accelerators")
    result = CliRunner().invoke(main, ["doctor", "--profile", "qwen3-next-80b-a3b-mtp", "--offline"])
    assert result.exit_code == 1
    assert "R01  FAIL  profile qwen3-next-80b-a3b-mtp needs 4 nvidia or amd accelerators, has none" in result.stdout


def test_the_real_hub_client_asks_with_the_token(tmp_path: Path) -> None:
    """Against the hub on loopback: gated without a token, fine with one."""
    (tmp_path / "tiny.yaml").write_text(profile_text(tmp_path, model={"id": "tiny/model", "gated": True}))
    with hubs.serving(tiny__model=Repo({"config.json": b"{}"}, needs="hf_good000000000", gate=True)) as hub:
        env = {**os.environ, "HF_ENDPOINT": hub.url, "HF_HOME": str(tmp_path / "hf"), "NO_PROXY": "*"}
        command = [
            sys.executable,
            "-m",
            "launcher",
            "doctor",
            "--profile",
            "tiny",
            "--profiles-dir",
            str(tmp_path),
            "--json",
        ]
        for token, verdict in (("hf_wrong00000000", "fail"), ("hf_good000000000", "ok")):
            done = subprocess.run(command, env=env | {"HF_TOKEN": token}, capture_output=True, text=True)
            (finding,) = [f for f in json.loads(done.stdout)["findings"] if f["code"] == "R14"]
            assert finding["verdict"] == verdict, finding
            assert token not in done.stdout + done.stderr


@pytest.mark.parametrize(
    ("inherited", "of_profile", "asked"), [("0", None, True), ("1", None, False), ("", "1", False), ("0", "1", True)]
)
def test_the_hub_is_asked_where_serve_would_ask_it(
    tmp_path: Path, inherited: str, of_profile: str | None, asked: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    env = {"HF_HUB_OFFLINE": of_profile} if of_profile else {}
    (tmp_path / "tiny.yaml").write_text(profile_text(tmp_path, model={"id": "tiny/model"}, env=env))
    monkeypatch.setenv("HF_HUB_OFFLINE", inherited)
    wanted = []

    def look(environ: Any, repositories: Any, ask_hub: bool) -> Surroundings:
        wanted.append(ask_hub)
        return GOOD

    monkeypatch.setattr(surroundings, "look", look)
    CliRunner().invoke(main, ["doctor", "--profile", "tiny", "--profiles-dir", str(tmp_path)])
    assert wanted == [asked]


def test_the_list_knows_the_vllm_that_is_here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(software, "installed", lambda: "0.25.0")
    (row,) = [
        r
        for r in json.loads(CliRunner().invoke(main, ["profiles", "list", "--json"]).stdout)["profiles"]
        if r["name"] == "smollm2-cpu"
    ]
    assert row["misfits"] == ["vLLM 0.25.0; the profile wants 0.26.0 to the newest"]


def test_the_list_says_what_fits_here_and_why_not() -> None:
    rows = {
        row["name"]: row
        for row in json.loads(CliRunner().invoke(main, ["profiles", "list", "--json"]).stdout)["profiles"]
    }
    assert rows["smollm2-cpu"]["misfits"] == []
    if not machine.look({}).devices:
        assert rows["qwen3.8-27b-mtp"]["misfits"] == ["needs 1 nvidia or amd accelerator, has none"]
        assert (
            "no: needs 1 nvidia or amd accelerator, has none" in CliRunner().invoke(main, ["profiles", "list"]).stdout
        )


def test_the_page_has_every_code() -> None:
    rows = [
        line.split("|")[1].strip()
        for line in (ROOT / "docs/profiles.md").read_text().splitlines()
        if line.startswith("| R")
    ]
    assert rows == list(checks.CHECKS)


class _Nvml(types.ModuleType):
    """NVML's bindings with a machine of two GPUs behind them, or with an error."""

    class NVMLError(Exception):
        def __init__(self, value: int) -> None:
            super().__init__(f"error {value}")
            self.value = value

    NVML_ERROR_LIBRARY_NOT_FOUND, NVML_ERROR_DRIVER_NOT_LOADED, MISMATCH = 12, 9, 18

    def __init__(self, error: int = 0) -> None:
        super().__init__("pynvml")
        self.error, self.open = error, 0

    def nvmlInit(self) -> None:
        if self.error:
            raise self.NVMLError(self.error)
        self.open += 1

    def nvmlShutdown(self) -> None:
        self.open -= 1

    def __getattr__(self, name: str) -> Any:
        answers: dict[str, Any] = {
            "nvmlDeviceGetCount": lambda: 2,
            "nvmlDeviceGetHandleByIndex": lambda index: index,
            "nvmlDeviceGetMemoryInfo": lambda handle: types.SimpleNamespace(total=(80 + handle) * GIB, free=9 * GIB),
            "nvmlDeviceGetCudaComputeCapability": lambda handle: (9, handle),
            "nvmlDeviceGetUUID": lambda handle: f"GPU-{handle}{handle}-x",
            "nvmlDeviceGetName": lambda handle: f"GPU {handle}",
            "nvmlSystemGetCudaDriverVersion_v2": lambda: 13010,
            "nvmlSystemGetDriverVersion": lambda: "580.1",
        }
        if name not in answers:
            raise AttributeError(name)
        return answers[name]


def test_nvml_is_read_and_let_go(monkeypatch: pytest.MonkeyPatch) -> None:
    nvml = _Nvml()
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    found = machine.look({})
    assert [(d.name, d.memory, d.free, d.arch) for d in found.of(Kind.NVIDIA)] == [
        ("GPU 0", 80 * GIB, 9 * GIB, "9.0"),
        ("GPU 1", 81 * GIB, 9 * GIB, "9.1"),
    ]
    assert (found.driver, found.driver_cuda) == ("580.1", (13, 1))
    assert nvml.open == 0
    for chosen, seen in {
        "1": ["GPU 1"],
        "1,0": ["GPU 1", "GPU 0"],
        "GPU-11": ["GPU 1"],
        "": [],
        "-1": [],
        "0,7,1": ["GPU 0"],
    }.items():
        assert [d.name for d in machine.look({"CUDA_VISIBLE_DEVICES": chosen}).devices] == seen, chosen


def test_a_driver_of_two_versions_is_a_problem_and_none_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", _Nvml(_Nvml.MISMATCH))
    assert machine.look({}).problems == ("NVML: error 18",)
    assert found(planned(), machine=machine.look({}))["R01"][0].verdict is Verdict.FAIL
    monkeypatch.setitem(sys.modules, "pynvml", _Nvml(_Nvml.NVML_ERROR_LIBRARY_NOT_FOUND))
    if not Path("/proc/driver/nvidia/version").exists():
        assert machine.look({}) == Machine()


def test_amdsmi_is_taken_only_where_there_is_a_kfd(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    smi: Any = types.ModuleType("amdsmi")
    calls = []
    smi.amdsmi_init = lambda: calls.append("init")
    smi.amdsmi_shut_down = lambda: calls.append("down")
    smi.amdsmi_get_processor_handles = lambda: ["h"]
    smi.amdsmi_get_gpu_asic_info = lambda handle: {"market_name": "R9700", "target_graphics_version": "gfx1201"}
    smi.AmdSmiMemoryType = types.SimpleNamespace(VRAM=0)
    smi.amdsmi_get_gpu_memory_total = lambda handle, kind: 32 * GIB
    smi.amdsmi_get_gpu_memory_usage = lambda handle, kind: 2 * GIB
    monkeypatch.setitem(sys.modules, "amdsmi", smi)
    monkeypatch.setattr(machine, "KFD", tmp_path / "kfd")
    assert machine.look({}).of(Kind.AMD) == []
    assert calls == []
    machine.KFD.touch()
    assert machine.look({}).of(Kind.AMD) == [Device(Kind.AMD, "R9700", 32 * GIB, 30 * GIB, "gfx1201")]
    assert calls == ["init", "down"]
    monkeypatch.setitem(sys.modules, "amdsmi", None)
    assert "amdsmi of the ROCm tree cannot be used" in machine.look({}).problems[-1]
