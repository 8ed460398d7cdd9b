"""Run inside an image at the end of its build: what is in it is what its labels say, and what the plugin needs.

    python check.py --vllm 0.33.0 --plugin 0.1.0 --accelerator cuda --accelerator-version 13.0

Needs no GPU. Every finding is printed; one is enough to end the build.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from importlib import metadata, resources
from pathlib import Path

#: sources that are compiled at run time
KINDS = (".cu", ".cuh", "_triton.py")
#: one of each generation: A100, H100, B200, RTX PRO 6000
ARCHITECTURES = ("sm_80", "sm_90a", "sm_100", "sm_120")
#: the toolchain is what is tried here; tests/radiance/test_build.py compiles every kernel in every form
KERNELS: dict[str, dict[str, int]] = {"read": {}, "select": {"PER_THREAD": 8}, "round": {"WIDTH": 128}}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--vllm", required=True)
    parser.add_argument("--plugin", required=True)
    parser.add_argument("--accelerator", required=True, choices=["cpu", "cuda", "rocm"])
    parser.add_argument("--accelerator-version", default="")
    wanted = parser.parse_args()
    problems = [*versions(wanted), *plugin(), *seams(), *(nvrtc() + nvcc() if wanted.accelerator == "cuda" else [])]
    for problem in problems:
        print(f"check.py: {problem}", file=sys.stderr)
    return 1 if problems else 0


def versions(wanted: argparse.Namespace) -> list[str]:
    import torch

    found = metadata.version("vllm")
    problems = []
    if found != wanted.vllm and not found.startswith(f"{wanted.vllm}+"):
        problems.append(f"the image's label says vLLM {wanted.vllm}, installed is {found}: set VLLM_VERSION")
    ours = metadata.version("radiance-vllm")
    if ours != wanted.plugin:
        problems.append(f"the image's label says plugin {wanted.plugin}, installed is {ours}: set PLUGIN_VERSION")
    there = {"cpu": "", "cuda": torch.version.cuda, "rocm": torch.version.hip}[wanted.accelerator]
    if there is None:
        problems.append(f"torch {torch.__version__} is not built for {wanted.accelerator}")
    elif not f"{there}.".startswith(f"{wanted.accelerator_version}." if wanted.accelerator_version else ""):
        problems.append(f"the label says {wanted.accelerator} {wanted.accelerator_version}, torch is built for {there}")
    print(f"vLLM {found}, torch {torch.__version__}, radiance-vllm {ours}")
    return problems


def plugin() -> list[str]:
    """vLLM will find it, and the sources it compiles at run time came along."""
    problems = []
    points = metadata.entry_points(group="vllm.general_plugins", name="radiance")
    if len(points) != 1:
        problems.append(f"{len(points)} plugins called radiance, expected 1")
    for point in points:
        point.load()
    sources = sorted(path.name for path in resources.files("radiance.kernels").iterdir())
    sources = [name for name in sources if name.endswith(KINDS)]
    if not all(any(name.endswith(kind) for name in sources) for kind in KINDS):
        problems.append(f"kernel sources are missing: of {KINDS} there is {sources}")
    lost = [str(file) for file in metadata.files("radiance-vllm") or [] if not file.locate().exists()]
    if lost:
        problems.append(f"files of the plugin are missing: {lost}")
    print(f"{len(sources)} kernel sources")
    return problems


def seams() -> list[str]:
    done = subprocess.run([sys.executable, "-m", "radiance.seams"], capture_output=True, text=True)
    print(done.stdout, end="")
    return done.stderr.splitlines() if done.returncode else []


def nvrtc() -> list[str]:
    """The image's own NVRTC compiles the kernels, which needs neither a GPU nor a driver."""
    from radiance.kernels import build

    problems = []
    with tempfile.TemporaryDirectory() as cache:
        for stem, defines in KERNELS.items():
            for arch in ARCHITECTURES:
                try:
                    code = build.cubin(stem, defines, arch, Path(cache))
                except Exception as error:  # whatever it is, it must end the build with its text
                    problems.append(f"{stem}.cu for {arch}: {error}")
                else:
                    print(f"NVRTC {stem}.cu {arch}: {len(code)} bytes")
    return problems


def nvcc() -> list[str]:
    """FlashInfer compiles and links at run time with the image's own CUDA: the same steps with three lines of code."""
    cuda = Path(os.environ["CUDA_HOME"])
    source = "#include <cuda_bf16.h>\n#include <cub/cub.cuh>\n__global__ void f(__nv_bfloat16 *x) { *x = __float2bfloat16(1.f); }\n"
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "f.cu").write_text(source)
        for command in (
            [cuda / "bin/nvcc", "-arch=sm_90a", "-Xcompiler", "-fPIC", "-c", "f.cu", "-o", "f.o"],
            ["c++", "f.o", "-shared", f"-L{cuda}/lib64", f"-L{cuda}/lib64/stubs", "-lcudart", "-lcuda", "-o", "f.so"],
        ):
            done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
            if done.returncode:
                return [f"{command[0]} ended with {done.returncode}: {done.stderr[-2000:]}"]
    print("nvcc and the linker make a shared library")
    return []


if __name__ == "__main__":
    sys.exit(main())
