"""Accelerators, their driver, their memory, and who may open them."""

from __future__ import annotations

from launcher.checks.verdict import Findings, fail, fail_if, ok
from launcher.estimate import GIB, UTILISATION
from launcher.machine import misfits
from launcher.plan import ServePlan
from launcher.sections import Kind
from launcher.surroundings import Surroundings

#: oldest driver for each major release of CUDA
DRIVERS = {12: "525.60.13", 13: "580.65.06"}
#: what cuInit says when it does not say 0
CUDA_ERRORS = {
    100: ("no device is visible", "start the container with --gpus all, and look at CUDA_VISIBLE_DEVICES"),
    802: ("the GPUs are not ready", "on NVSwitch machines the fabric manager must run, in the driver's version"),
    803: (
        "the driver's library is of another version than its kernel module",
        "reboot the host after a driver update; in a container, take any libcuda.so of the image out of LD_LIBRARY_PATH",
    ),
    804: (
        "a forward-compatibility libcuda is loaded on a GPU that does not support it",
        "take cuda/compat out of LD_LIBRARY_PATH, and install a driver that is new enough by itself",
    ),
    999: ("the driver failed", "look at dmesg on the host"),
}


def accelerators(around: Surroundings, plan: ServePlan | None) -> Findings:
    for problem in around.machine.problems:
        yield fail(problem, "install a driver and its libraries in one version")
    devices = around.machine.devices
    names = ", ".join(f"{d.name} ({d.memory / GIB:.0f} GiB, {d.arch})" for d in devices) or "none"
    reasons = misfits(plan.settled.profile, around.machine) if plan else []
    for reason in reasons:
        yield fail(
            f"profile {(plan.profile if plan else '')} {reason}",
            "choose another profile (`radiance profiles list`) or machine",
        )
    if not reasons:
        yield ok(f"accelerators: {names}")


def driver(around: Surroundings, plan: ServePlan | None) -> Findings:
    del plan
    runtime, speaks = (around.cuda_runtime, around.machine.driver_cuda)
    if runtime is None or speaks is None:
        return
    have, want = (".".join(map(str, speaks)), ".".join(map(str, runtime)))
    if speaks[0] < runtime[0]:
        need = DRIVERS.get(runtime[0], f"one for CUDA {runtime[0]}")
        yield fail(
            f"driver {around.machine.driver} speaks CUDA {have}, the libraries here are CUDA {want}",
            f"install driver {need} or newer on the host, or take an image for CUDA {speaks[0]}",
        )
    else:
        yield ok(f"driver {around.machine.driver} (CUDA {have}) serves CUDA {want}")


def cuda(around: Surroundings, plan: ServePlan | None) -> Findings:
    del plan
    code = around.cuda_init
    if code is None:
        return
    if code:
        text, fix = CUDA_ERRORS.get(code, ("CUDA does not start", "look up the number in NVIDIA's list of CUDA errors"))
        # No device is an error only where NVML sees one: elsewhere the library came with some package.
        yield fail_if(code != 100 or bool(around.machine.of(Kind.NVIDIA)))(f"CUDA error {code}: {text}", fix)
    else:
        yield ok("CUDA starts")


def memory(around: Surroundings, plan: ServePlan | None) -> Findings:
    guess = plan.estimate.memory if plan else None
    if plan is None or guess is None:
        return
    profile = plan.settled.profile
    usable = sorted((d for d in around.machine.devices if d.kind in profile.accelerator.kinds), key=lambda d: -d.free)
    if len(usable) < profile.world_size:
        return
    least = usable[profile.world_size - 1]
    share = profile.gpu_memory_utilization or UTILISATION
    fixed = guess.weights + guess.drafter + (guess.packed_head or 0)
    one = (guess.kv_per_token or 0) * (profile.max_model_len or 0)
    need = fixed + (profile.kv_cache_memory_bytes or one)
    if least.free < least.memory * share and (not profile.kv_cache_memory_bytes):
        yield fail(
            f"{least.name}: {least.free / GIB:.1f} of {least.memory / GIB:.1f} GiB are free, vLLM will ask for {share:.0%}",
            "end what else runs on it, or --set gpu_memory_utilization to less",
        )
    elif need > least.memory * share:
        yield fail(
            f"{need / GIB:.1f} GiB for weights, head and one sequence of max_model_len; "
            f"{share:.0%} of {least.name} are {least.memory * share / GIB:.1f}",
            "more tensor_parallel_size, a shorter max_model_len, or kv_cache_dtype: fp8",
        )
    else:
        yield ok(f"{need / GIB:.1f} GiB needed at least, {least.free / GIB:.1f} free on {least.name}")


def kfd(around: Surroundings, plan: ServePlan | None) -> Findings:
    del plan
    if around.kfd is None:
        return
    group, opens = around.kfd
    if opens:
        yield ok(f"/dev/kfd can be opened (group {group})")
    else:
        yield fail(
            f"/dev/kfd belongs to group {group}; this process has {', '.join(map(str, around.gids))}",
            f"docker run --group-add {group}; Kubernetes: securityContext.supplementalGroups: [{group}]",
        )
