"""CUDA sources -> kernels: NVRTC at run time, a cache on disk, and launches. The only module that imports NVIDIA's bindings.

The key of a cache entry is a hash of everything that decides the machine code: the source, the shared headers, the
options, the target and the compiler's version. An entry is written under a temporary name and renamed into place, so any
number of ranks may build the same kernel at once; its compiler log lies beside it.
"""

from __future__ import annotations

import ctypes
import hashlib
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch

from radiance import cache
from radiance.errors import UnsupportedHead

_HERE = Path(__file__).parent
_lock = threading.Lock()
_loaded: dict[tuple[int, str, str, tuple[tuple[str, int | str], ...], str], Kernel] = {}


@dataclass(frozen=True)
class Kernel:
    """A loaded entry point. `device` is the CUDA ordinal it was loaded on."""

    name: str
    device: int
    function: Any


def kernel(stem: str, entry: str, defines: Mapping[str, int | str], device: torch.device, arch: str) -> Kernel:
    """The kernel `entry` of kernels/<stem>.cu built with `defines` for `arch` ("sm_90a"), loaded on `device`.

    Compiles at most once a process and, with the cache, once a machine: never call it first under graph capture
    (shortlist.warm does it for all shapes). Raises UnsupportedHead("toolchain") if NVRTC is missing or refuses.
    """
    ordinal = torch.cuda.current_device() if device.index is None else device.index
    key = (ordinal, stem, entry, tuple(sorted(defines.items())), arch)
    with _lock:
        if key not in _loaded:
            driver = bindings()[0]
            with torch.cuda.device(ordinal):
                torch.cuda.current_stream()  # the primary context is current from here on
                module = check(driver.cuModuleLoadData(cubin(stem, defines, arch)), f"loading {stem}")
                function = check(driver.cuModuleGetFunction(module, entry.encode()), entry)
                most = driver.CUdevice_attribute.CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN
                room = check(driver.cuDeviceGetAttribute(most, check(driver.cuCtxGetDevice(), "device")), "device")
                fixed = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES
                dynamic = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
                used = check(driver.cuFuncGetAttribute(fixed, function), entry)
                check(driver.cuFuncSetAttribute(function, dynamic, room - used), entry)
            _loaded[key] = Kernel(entry, ordinal, function)
        return _loaded[key]


def launch(
    kernel: Kernel,
    grid: tuple[int, int],
    threads: int,
    shared: int,
    args: Sequence[tuple[Any, Any]],
    *,
    cluster: int = 1,
    early: bool = False,
) -> None:
    """Put one launch on torch's current stream. `args`: (value, ctypes type); `shared` in bytes.

    `early` lets it start before its predecessor has ended (sm_90+): the kernel itself waits where it must.
    """
    driver = bindings()[0]
    config = driver.CUlaunchConfig()
    config.gridDimX, config.gridDimY, config.gridDimZ = grid[0], grid[1], 1
    config.blockDimX, config.blockDimY, config.blockDimZ = threads, 1, 1
    config.sharedMemBytes = shared
    config.hStream = driver.CUstream(torch.cuda.current_stream(kernel.device).cuda_stream)
    attributes = []
    if cluster > 1:
        attribute = driver.CUlaunchAttribute()
        attribute.id = driver.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION
        attribute.value.clusterDim.x, attribute.value.clusterDim.y, attribute.value.clusterDim.z = cluster, 1, 1
        attributes.append(attribute)
    if early:
        attribute = driver.CUlaunchAttribute()
        attribute.id = driver.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
        attribute.value.programmaticStreamSerializationAllowed = 1
        attributes.append(attribute)
    config.attrs, config.numAttrs = attributes, len(attributes)
    params = (tuple(value for value, _ in args), tuple(kind for _, kind in args))
    with torch.cuda.device(kernel.device):
        result = driver.cuLaunchKernelEx(config, kernel.function, params, 0)
    check(result, f"launching {kernel.name} {grid} x {threads}")


def pointer(tensor: torch.Tensor | None) -> tuple[int, Any]:
    """A kernel argument: the tensor's address, 0 for None."""
    return (0 if tensor is None else tensor.data_ptr()), ctypes.c_void_p


def integer(value: int) -> tuple[int, Any]:
    return value, ctypes.c_int


def long(value: int) -> tuple[int, Any]:
    return value, ctypes.c_longlong


def real(value: float) -> tuple[float, Any]:
    return value, ctypes.c_float


def cubin(stem: str, defines: Mapping[str, int | str], arch: str, folder: Path | None = None) -> bytes:
    """Machine code of kernels/<stem>.cu, from the cache or the compiler. `folder`: the cache (default cache.folder("kernels"))."""
    source = (_HERE / f"{stem}.cu").read_text()
    headers = {path.name: path.read_text() for path in sorted(_HERE.glob("*.cuh"))}
    options = [f"--gpu-architecture={arch}", "--std=c++17", "--ptxas-options=-v"]
    options += [f"-D{name}={value}" for name, value in sorted(defines.items())]
    parts = [_compiler_version(), stem, source, *options, *(text for item in headers.items() for text in item)]
    digest = hashlib.sha256("\0".join(parts).encode()).hexdigest()
    where = cache.checked(cache.folder("kernels") if folder is None else folder)
    entry = None if where is None else where / f"{stem}-{digest[:32]}.cubin"
    if entry is not None and (code := _read_sealed(entry)) is not None:
        return code
    code, log = compile_source(source, stem, headers, options)
    if entry is not None:
        _publish(entry.with_suffix(".log"), "\n".join([*options, log]).encode())
        _publish(entry, code + hashlib.sha256(code).digest())
    return code


def compile_source(source: str, stem: str, headers: Mapping[str, str], options: Sequence[str]) -> tuple[bytes, str]:
    """(machine code, compiler log). Raises UnsupportedHead("toolchain") with the log's first lines."""
    nvrtc = bindings()[1]
    names, texts = [name.encode() for name in headers], [text.encode() for text in headers.values()]
    program = check(nvrtc.nvrtcCreateProgram(source.encode(), f"{stem}.cu".encode(), len(names), texts, names), stem)
    status = nvrtc.nvrtcCompileProgram(program, len(options), [option.encode() for option in options])[0]
    log = b" " * check(nvrtc.nvrtcGetProgramLogSize(program), stem)
    check(nvrtc.nvrtcGetProgramLog(program, log), stem)
    text = log.rstrip(b"\0 ").decode(errors="replace")
    if int(status) != 0:
        raise UnsupportedHead("toolchain", f"NVRTC refused {stem}.cu ({status}): {text[:2000]} (kernels/build.py)")
    code = b" " * check(nvrtc.nvrtcGetCUBINSize(program), stem)
    check(nvrtc.nvrtcGetCUBIN(program, code), stem)
    check(nvrtc.nvrtcDestroyProgram(program), stem)
    return code, text


def _read_sealed(entry: Path) -> bytes | None:
    """An entry ends in its own hash: a torn or damaged one is built again."""
    try:
        raw = entry.read_bytes()
    except OSError:
        return None
    code, seal = raw[:-32], raw[-32:]
    return code if code and hashlib.sha256(code).digest() == seal else None


def _publish(path: Path, data: bytes) -> None:
    with suppress(OSError):  # a full or read-only disk costs a compilation at the next start, nothing else
        cache.publish(path, data)


@lru_cache
def bindings() -> tuple[Any, Any]:
    """NVIDIA's (driver, nvrtc). Raises UnsupportedHead("toolchain") if they are not installed."""
    try:
        from cuda.bindings import driver, nvrtc
    except ImportError as error:
        fix = "install cuda-bindings (it comes with the image)"
        raise UnsupportedHead("toolchain", f"the CUDA kernels need NVIDIA's Python bindings: {error}; {fix}") from None
    return driver, nvrtc


@lru_cache
def _compiler_version() -> str:
    try:
        found = bindings()[1].nvrtcVersion()
    except RuntimeError as error:
        raise UnsupportedHead("toolchain", f"NVRTC cannot be loaded: {error}; install nvidia-cuda-nvrtc") from None
    return ".".join(str(part) for part in found[1:])


def check(result: Any, what: str) -> Any:
    """The value of a call to those. Raises RuntimeError with `what` if the call failed."""
    status, *values = result if isinstance(result, tuple) else (result,)
    if int(status) != 0:
        raise RuntimeError(f"{what}: {status!r} (kernels/build.py)")
    return values[0] if values else None
