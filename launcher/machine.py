"""What accelerators this machine has, and whether a profile fits: read through NVML and amdsmi, never through torch.

NVML comes as nvidia-ml-py, which needs no driver to be imported. amdsmi must match its library, so it is taken from the ROCm
tree that is there, if one is. Both may be missing, present without a driver, or of another version than the driver's kernel
module: `problems` says so in words, because "no GPU" alone helps nobody.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from launcher.schema import Profile
from launcher.sections import Kind

GIB = 1 << 30
KFD = Path("/dev/kfd")


@dataclass(frozen=True)
class Device:
    """Memory in bytes. `arch`: compute capability such as "9.0", or a gfx name."""

    kind: Kind
    name: str
    memory: int
    free: int
    arch: str
    uuid: str = ""


@dataclass(frozen=True)
class Machine:
    devices: tuple[Device, ...] = ()
    #: of the NVIDIA driver, such as "580.159.03"; empty: none
    driver: str = ""
    #: newest CUDA the driver speaks, such as (13, 0)
    driver_cuda: tuple[int, int] | None = None
    problems: tuple[str, ...] = ()

    def of(self, kind: Kind) -> list[Device]:
        return [device for device in self.devices if device.kind is kind]


def look(environ: Mapping[str, str]) -> Machine:
    """Read the machine, as far as `environ` lets vLLM see it. Never raises: what cannot be read is in `problems`."""
    nvidia, amd = _nvidia(), _amd()
    devices = [
        *visible(nvidia.devices, environ.get("CUDA_VISIBLE_DEVICES")),
        *visible(amd.devices, environ.get("HIP_VISIBLE_DEVICES", environ.get("ROCR_VISIBLE_DEVICES"))),
    ]
    return Machine(tuple(devices), nvidia.driver, nvidia.driver_cuda, (*nvidia.problems, *amd.problems))


def visible(devices: Sequence[Device], chosen: str | None) -> list[Device]:
    """What a *_VISIBLE_DEVICES leaves of them: indices or beginnings of UUIDs, up to the first that is neither, as CUDA does."""
    if chosen is None:
        return list(devices)
    found = []
    for word in filter(None, map(str.strip, chosen.split(","))):
        if word.isdigit() and int(word) < len(devices):
            found.append(devices[int(word)])
        elif not word.isdigit() and (named := [device for device in devices if device.uuid.startswith(word)]):
            found.append(named[0])
        else:
            break
    return found


def misfits(profile: Profile, machine: Machine) -> list[str]:
    """Why the profile cannot be served here; empty when it can. CPU profiles fit everywhere."""
    wanted = profile.accelerator
    if Kind.CPU in wanted.kinds:
        return []
    need = profile.world_size
    usable = [device for device in machine.devices if device.kind in wanted.kinds]
    names = " or ".join(wanted.kinds)
    if len(usable) < need:
        have = f"has {len(usable)}" if usable else "has none"
        return [f"needs {need} {names} accelerator{'s' if need > 1 else ''}, {have}"]
    # The best ones count: CUDA_VISIBLE_DEVICES can choose them.
    usable = sorted(usable, key=lambda device: device.memory, reverse=True)[:need]
    reasons = []
    least = min(device.memory for device in usable)
    if wanted.memory_gib_min and least < wanted.memory_gib_min * GIB * 0.97:
        # 3 %: a "24 GB" card reports 23.6 GiB
        reasons.append(f"needs {wanted.memory_gib_min:g} GiB on each accelerator, has {least / GIB:.0f}")
    for device in usable:
        if device.kind is Kind.NVIDIA and wanted.compute_capability_min:
            if _numbers(device.arch) < _numbers(wanted.compute_capability_min):
                reasons.append(
                    f"needs compute capability {wanted.compute_capability_min}, {device.name} has {device.arch}"
                )
        elif device.kind is Kind.AMD and wanted.gfx and device.arch not in wanted.gfx:
            reasons.append(f"needs {' or '.join(wanted.gfx)}, {device.name} is {device.arch or 'unknown'}")
    return list(dict.fromkeys(reasons))


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(".") if part.isdigit())


def _nvidia() -> Machine:
    import pynvml

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        if error.value in (pynvml.NVML_ERROR_LIBRARY_NOT_FOUND, pynvml.NVML_ERROR_DRIVER_NOT_LOADED):
            there = os.path.exists("/proc/driver/nvidia/version")
            missing = "the NVIDIA driver is loaded but its library is not here: start the container with --gpus all"
            return Machine(problems=(missing,) if there else ())
        return Machine(problems=(f"NVML: {error}",))
    try:
        devices = []
        for index in range(pynvml.nvmlDeviceGetCount()):
            handle = pynvml.nvmlDeviceGetHandleByIndex(index)
            memory = pynvml.nvmlDeviceGetMemoryInfo(handle)
            major, minor = pynvml.nvmlDeviceGetCudaComputeCapability(handle)
            name = pynvml.nvmlDeviceGetName(handle)
            uuid = str(pynvml.nvmlDeviceGetUUID(handle))
            devices.append(
                Device(Kind.NVIDIA, str(name), int(memory.total), int(memory.free), f"{major}.{minor}", uuid)
            )
        cuda = int(pynvml.nvmlSystemGetCudaDriverVersion_v2())
        return Machine(tuple(devices), str(pynvml.nvmlSystemGetDriverVersion()), (cuda // 1000, cuda % 1000 // 10))
    except pynvml.NVMLError as error:
        return Machine(problems=(f"NVML: {error}",))
    finally:
        pynvml.nvmlShutdown()


def _amd() -> Machine:
    if not KFD.exists():
        return Machine()
    try:
        import amdsmi  # type: ignore[import-not-found,unused-ignore]
    except (ImportError, OSError) as error:
        return Machine(problems=(f"/dev/kfd is there but amdsmi of the ROCm tree cannot be used: {error}",))
    try:
        amdsmi.amdsmi_init()
        try:
            return Machine(tuple(_amd_device(amdsmi, handle) for handle in amdsmi.amdsmi_get_processor_handles()))
        finally:
            amdsmi.amdsmi_shut_down()
    except Exception as error:  # amdsmi's own exceptions share no base with a fixed name
        return Machine(problems=(f"amdsmi: {error!r}",))


def _amd_device(amdsmi: Any, handle: Any) -> Device:
    asic = amdsmi.amdsmi_get_gpu_asic_info(handle)
    vram = amdsmi.AmdSmiMemoryType.VRAM
    total = int(amdsmi.amdsmi_get_gpu_memory_total(handle, vram))
    used = int(amdsmi.amdsmi_get_gpu_memory_usage(handle, vram))
    # target_graphics_version reads "gfx1201" or, in older releases, the bare number in hexadecimal
    arch = str(asic.get("target_graphics_version", ""))
    return Device(Kind.AMD, str(asic.get("market_name", "AMD")), total, total - used, arch)
