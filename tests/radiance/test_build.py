"""kernels/build: the cache on disk, with a fake compiler; the real one where NVRTC is installed."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from radiance import cache, ledger, tuning
from radiance.errors import UnsupportedHead
from radiance.kernels import build


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """The options of each compilation so far."""
    calls: list[list[str]] = []

    def fake(source: str, stem: str, headers: Mapping[str, str], options: Sequence[str]) -> tuple[bytes, str]:
        calls.append(list(options))
        return f"code of {stem} {options}".encode(), "ptxas: 32 registers"

    monkeypatch.setattr(build, "compile_source", fake)
    monkeypatch.setattr(build, "_compiler_version", lambda: "13.0")
    return calls


def test_a_kernel_is_compiled_once_and_its_log_is_kept(compiled: list[list[str]], tmp_path: Path) -> None:
    folder = tmp_path / "cache"
    first = build.cubin("read", {"K": 1}, "sm_90a", folder)
    assert build.cubin("read", {"K": 1}, "sm_90a", folder) == first
    assert len(compiled) == 1
    names = sorted(path.suffix for path in folder.iterdir())
    assert names == [".cubin", ".log"], "no temporary file is left"
    log = next(folder.glob("*.log")).read_text()
    assert "-DK=1" in log
    assert "32 registers" in log
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700


def test_whatever_decides_the_code_is_in_the_key(
    compiled: list[list[str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    build.cubin("read", {"K": 1}, "sm_90a", tmp_path / "c")
    build.cubin("read", {"K": 2}, "sm_90a", tmp_path / "c")
    build.cubin("read", {"K": 1}, "sm_80", tmp_path / "c")
    build.cubin("select", {"K": 1}, "sm_90a", tmp_path / "c")
    monkeypatch.setattr(build, "_compiler_version", lambda: "13.1")
    build.cubin("read", {"K": 1}, "sm_90a", tmp_path / "c")
    assert len(compiled) == 5


def test_a_header_is_part_of_the_key(
    compiled: list[list[str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("read.cu", "common.cuh"):
        (tmp_path / name).write_text("one")
    monkeypatch.setattr(build, "_HERE", tmp_path)
    build.cubin("read", {}, "sm_90a", tmp_path / "c")
    (tmp_path / "common.cuh").write_text("two")
    build.cubin("read", {}, "sm_90a", tmp_path / "c")
    assert len(compiled) == 2


def test_a_damaged_entry_is_built_again(compiled: list[list[str]], tmp_path: Path) -> None:
    good = build.cubin("read", {}, "sm_90a", tmp_path / "c")
    entry = next((tmp_path / "c").glob("*.cubin"))
    for damage in (b"", entry.read_bytes()[:-5], b"x" + entry.read_bytes()[1:]):
        entry.write_bytes(damage)
        assert build.cubin("read", {}, "sm_90a", tmp_path / "c") == good
    assert len(compiled) == 4


def test_a_folder_others_can_write_is_refused_with_the_fix(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    with pytest.raises(UnsupportedHead, match=r"0755.*chmod 700") as error:
        cache.checked(tmp_path)
    assert error.value.reason == "cache_folder"


def test_a_link_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir(mode=0o700)
    (tmp_path / "link").symlink_to(tmp_path / "real")
    with pytest.raises(UnsupportedHead, match="must be a folder"):
        cache.checked(tmp_path / "link")


def test_without_a_folder_kernels_are_still_built(compiled: list[list[str]], tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    assert cache.checked(tmp_path / "file" / "cache") is None
    assert build.cubin("read", {}, "sm_90a", tmp_path / "file" / "cache")
    assert len(compiled) == 1


def test_the_default_folder_belongs_to_one_user(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cache.folder("kernels") == tmp_path / ".cache" / "radiance" / "kernels"
    monkeypatch.setenv("HOME", "/")
    assert str(os.getuid()) in str(cache.folder("kernels"))


def _nvrtc() -> bool:
    try:
        build._compiler_version()
    except UnsupportedHead:
        return False
    return True


@pytest.mark.skipif(not _nvrtc(), reason="NVRTC is not installed")
@pytest.mark.parametrize("arch", ["sm_80", "sm_90a", "sm_100", "sm_120"])
def test_every_kernel_compiles_and_no_wgmma_is_serialised(arch: str) -> None:
    defines: list[tuple[str, dict[str, int | str]]] = [
        ("select", {"PER_THREAD": 8}), ("read", {}), ("round", {"WIDTH": 128}), ("count", {})
    ]  # fmt: skip
    for w in range(4):
        kinds = {"K": 5120, "X_TYPE": w % 3, "W_TYPE": w, "VECTOR": (8, 8, 4, 16)[w], "ROUND": w % 3} | ledger.defines()
        defines += [("rerank", kinds | {"ROWS_PER_BLOCK": 1 + 3 * (w % 2)}), ("check", kinds)]
    rotate = ledger.defines() | {"K": 5120, "A": 20, "B": 256, "DENSE": 1, "NT": 1, "X_TYPE": 0, "THREADS": 640}
    defines += [("rotate", rotate | {"TENSOR": tensor}) for tensor in (0, 1)]
    for c in tuning.CANDIDATES:
        if c.stem == "coarse_wgmma" and arch != "sm_90a":
            continue
        own = {"RT": c.rt} if c.stem == "coarse" else {"SPLIT": c.split}
        if c.nt == 8 and c.split == 1:
            continue  # for small k only
        defines.append(
            (
                c.stem,
                {"BLOCKS": 40, "GROUP": 128, "NT": c.nt, "WARPS": c.warps, "DEPTH": c.depth, "AHEAD": c.ahead} | own,
            )
        )
    headers = {path.name: path.read_text() for path in build._HERE.glob("*.cuh")}
    for stem, chosen in defines:
        options = [f"--gpu-architecture={arch}", "--std=c++17", "--ptxas-options=-v"]
        options += [f"-D{name}={value}" for name, value in chosen.items()]
        code, log = build.compile_source((build._HERE / f"{stem}.cu").read_text(), stem, headers, options)
        assert code[:4] == b"\x7fELF"
        if stem.startswith("coarse"):  # more than the 20 bytes of the kernel for 64 rows were seen to cost 20 us
            spilled = re.findall(r"(\d+) bytes spill stores", log)
            assert spilled, log
            assert max(map(int, spilled)) <= 20, f"{stem} {chosen}: {log}"
        assert "C75" not in log, f"{stem} {chosen}: wgmma is serialised: {log}"


@pytest.mark.skipif(not _nvrtc(), reason="NVRTC is not installed")
def test_the_compilers_words_reach_the_user() -> None:
    with pytest.raises(UnsupportedHead, match="undefined_thing") as error:
        build.compile_source("__global__ void f() { undefined_thing(); }", "f", {}, ["--gpu-architecture=sm_90a"])
    assert error.value.reason == "toolchain"
