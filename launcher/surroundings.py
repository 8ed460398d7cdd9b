"""What `radiance doctor` looks at, read once: devices, driver, folders, compiler, packages, hub. Facts only; checks.py judges.

Nothing here imports torch, vllm or triton: what has to be imported to be believed is imported by a process of its own.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from launcher import cachedirs, fetch, machine
from launcher.fetch import Repository
from radiance import seams

SHM = Path("/dev/shm")


@dataclass(frozen=True)
class Folder:
    """`problem`: why it cannot be written, empty when it can. `free`: bytes."""

    name: str
    path: Path
    problem: str
    free: int


@dataclass(frozen=True)
class Answer:
    """Of the hub, to a question for one repository's config.json: `status` 0 and a text when it did not answer."""

    repository: Repository
    status: int
    text: str = ""


@dataclass(frozen=True)
class Surroundings:
    environ: Mapping[str, str]
    machine: machine.Machine
    uid: int
    gids: tuple[int, ...]
    #: bytes of /dev/shm; None: there is none
    shm: int | None
    #: group of /dev/kfd, and whether this process may open it; None: no such device
    kfd: tuple[int, bool] | None
    folders: tuple[Folder, ...]
    compiler: str
    #: version, or why it cannot be imported; both empty when it is not installed
    triton: tuple[str, str]
    #: names of entry points of vLLM's general plugins
    plugins: tuple[str, ...]
    vllm: str
    #: one line for each place of the hook that this vLLM lacks
    seams: tuple[str, ...]
    #: of the CUDA libraries beside torch, such as (13, 0)
    cuda_runtime: tuple[int, int] | None
    #: what cuInit returned; None: no libcuda
    cuda_init: int | None
    #: empty: not asked
    hub: tuple[Answer, ...]
    #: repositories that are whole in the cache
    cached: tuple[str, ...]
    now: float


def look(environ: Mapping[str, str], repositories: list[Repository], ask_hub: bool) -> Surroundings:
    """Read everything. Takes a second or two: some checks start a process, some ask the hub."""
    cached = tuple(repository.id for repository in repositories if fetch.cached(repository))
    missing = [repository for repository in repositories if repository.id not in cached]
    vllm, lacking = _vllm()
    return Surroundings(
        environ=environ,
        machine=machine.look(environ),
        uid=os.getuid(),
        gids=(os.getgid(), *os.getgroups()),
        shm=_space(SHM) if SHM.is_dir() else None,
        kfd=_kfd(),
        folders=tuple(folder(name, path) for name, path in cachedirs.places(environ).items()),
        compiler=_compiler(environ),
        triton=_triton(environ),
        plugins=tuple(sorted(point.name for point in importlib.metadata.entry_points(group="vllm.general_plugins"))),
        vllm=vllm,
        seams=lacking,
        cuda_runtime=_cuda_runtime(),
        cuda_init=_cuda_init(environ),
        hub=tuple(_ask(repository, environ) for repository in missing) if ask_hub else (),
        cached=cached,
        now=time.time(),
    )


def folder(name: str, path: Path) -> Folder:
    """Try it: make a file in the folder, or in the nearest one above it that exists."""
    there = path
    while not there.exists() and there != there.parent:
        there = there.parent
    try:
        with tempfile.TemporaryFile(dir=there):
            problem = ""
    except OSError as error:
        owner = there.stat()
        problem = (
            f"{error.strerror} ({there} belongs to {owner.st_uid}:{owner.st_gid}, mode {owner.st_mode & 0o7777:04o})"
        )
    return Folder(name, path, problem, shutil.disk_usage(there).free)


def _space(path: Path) -> int:
    found = os.statvfs(path)
    return found.f_frsize * found.f_blocks


def _kfd() -> tuple[int, bool] | None:
    if not machine.KFD.exists():
        return None
    return machine.KFD.stat().st_gid, os.access(machine.KFD, os.R_OK | os.W_OK)


def _compiler(environ: Mapping[str, str]) -> str:
    """As Triton looks for one."""
    names = [environ["CC"]] if environ.get("CC") else ["gcc", "clang", "cc"]
    return next((found for name in names if (found := shutil.which(name, path=environ.get("PATH")))), "")


def _triton(environ: Mapping[str, str]) -> tuple[str, str]:
    if importlib.util.find_spec("triton") is None:
        return "", ""
    code, out = _python("import triton; print(triton.__version__)", environ)
    return (out, "") if code == 0 else ("", out.splitlines()[-1] if out else f"the import ended with {code}")


def _vllm() -> tuple[str, tuple[str, ...]]:
    spec = importlib.util.find_spec("vllm")
    if spec is None or not spec.submodule_search_locations:
        return "", ()
    try:
        version = importlib.metadata.version("vllm")
    except importlib.metadata.PackageNotFoundError:
        version = "0"
    return version, tuple(seams.gone(Path(spec.submodule_search_locations[0]).parent, version))


def _cuda_runtime() -> tuple[int, int] | None:
    for name in ("nvidia-cuda-runtime", "nvidia-cuda-runtime-cu12"):
        try:
            major, minor = importlib.metadata.version(name).split(".")[:2]
        except importlib.metadata.PackageNotFoundError:
            continue
        return int(major), int(minor)
    return None


def _cuda_init(environ: Mapping[str, str]) -> int | None:
    code, out = _python("import ctypes; print(ctypes.CDLL('libcuda.so.1').cuInit(0))", environ)
    return int(out) if code == 0 and out.isdigit() else None


def _python(code: str, environ: Mapping[str, str]) -> tuple[int, str]:
    """Exit code and output of a Python that runs `code`."""
    command = [sys.executable, "-c", code]
    try:
        done = subprocess.run(
            command, env=dict(environ), stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=120
        )
    except subprocess.TimeoutExpired:
        return 124, "it does not come back"
    return done.returncode, (done.stdout if done.returncode == 0 else done.stderr).strip()


def _ask(repository: Repository, environ: Mapping[str, str]) -> Answer:
    """HEAD of config.json: gated and private repositories refuse exactly this to a token that may not read them."""
    import httpx
    from huggingface_hub import get_token, hf_hub_url

    token = get_token()
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    url = hf_hub_url(repository.id, "config.json", revision=repository.revision, endpoint=environ.get("HF_ENDPOINT"))
    try:
        found = httpx.head(url, headers=headers, timeout=10.0)
    except httpx.HTTPError as error:
        return Answer(repository, 0, str(error) or type(error).__name__)
    return Answer(repository, found.status_code, found.headers.get("x-error-code", ""))
