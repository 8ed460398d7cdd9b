"""Launcher tests: no vLLM, no GPU, no network but loopback. Supervision is tested on real processes (fake_vllm.py)."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from figures import Upstream, serving_engine, serving_upstream
from serving import ROOT, Served, profile_text

from launcher import profiles
from launcher.engine import Engine
from tests import processes


@pytest.fixture(autouse=True)
def _clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the machine of whoever runs the tests has set must not decide them."""
    for name in list(os.environ):
        if name.startswith(("RADIANCE_", "VLLM_", "OMP_")) or name in ("HF_TOKEN", "HF_TOKEN_FILE", "HF_HUB_OFFLINE"):
            monkeypatch.delenv(name)
    paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(paths))


@pytest.fixture
def tiny(tmp_path: Path) -> Any:
    def make(**change: Any) -> profiles.Profile:
        path = tmp_path / "tiny.yaml"
        path.write_text(profile_text(Path("/models/tiny"), **change))
        return profiles.read(path)

    return make


@pytest.fixture
def profiles_dir(tmp_path: Path) -> Path:
    folder = tmp_path / "profiles"
    folder.mkdir()
    return folder


@pytest.fixture
def model(tmp_path: Path) -> Path:
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    return folder


@pytest.fixture
def fake_vllm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The executable; its notes go to tmp_path/notes."""
    (tmp_path / "notes").mkdir()
    (tmp_path / "tmp").mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "tmp"))
    monkeypatch.setenv("FAKE_VLLM_DIR", str(tmp_path / "notes"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    script = tmp_path / "vllm"
    script.write_text(f"#!{sys.executable}\n" + (Path(__file__).parent / "fake_vllm.py").read_text())
    script.chmod(0o755)
    return script


@pytest.fixture
def serve(
    tmp_path: Path, profiles_dir: Path, model: Path, fake_vllm: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[..., Served]]:
    """serve(*arguments, fake=..., **profile changes) -> Served. Ends what it started, and what a failed test left of it. One on
    another `host` (127.0.0.x) is another node and has its own notes."""
    started: list[Served] = []
    mark = processes.mark()
    monkeypatch.setenv(*next(iter(mark.items())))

    def start(
        *arguments: str, fake: str = "", ports: dict[str, int] | None = None, host: str = "127.0.0.1", **change: Any
    ) -> Served:
        monkeypatch.setenv("FAKE_VLLM", fake)
        notes = tmp_path / "notes" if host == "127.0.0.1" else tmp_path / f"notes-{host.replace('.', '-')}"
        notes.mkdir(exist_ok=True)
        monkeypatch.setenv("FAKE_VLLM_DIR", str(notes))
        (profiles_dir / "tiny.yaml").write_text(profile_text(model, **change))
        options = ["serve", "--profile", "tiny", "--profiles-dir", str(profiles_dir), "--vllm", str(fake_vllm)]
        started.append(Served([*options, *arguments], tmp_path, ports or {}, mark, host, notes))
        return started[-1]

    yield start
    for served in started:
        processes.kill(served.process)
    for pid in processes.marked(mark):
        os.kill(pid, signal.SIGKILL)


@pytest.fixture
def upstream() -> Iterator[Upstream]:
    with serving_upstream() as server:
        yield server


@pytest.fixture
def engine(tmp_path: Path, upstream: Upstream) -> Engine:
    """Ready, its vLLM answers, with one worker and one head."""
    return serving_engine(tmp_path, upstream.port)
