"""`radiance fetch` as a real command with the real hub client, against a hub on loopback: whole, cut, refused, missing, twice."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import hub as hubs
import psutil
import pytest
from hub import COMMIT, Hub, Repo
from serving import profile_text, until

from launcher import profiles

WEIGHTS = bytes(range(256)) * 4096  # 1 MiB
MODEL = {"config.json": b'{"a": 1}', "model.safetensors": WEIGHTS, "original/params.pth": b"x" * 99}
DRAFTER = {"config.json": b'{"b": 2}', "pytorch_model.bin": b"draft" * 1000}
TOKEN = "hf_loopback0123456789"

Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def hub() -> Iterator[Hub]:
    with hubs.serving(tiny__model=Repo(dict(MODEL)), tiny__drafter=Repo(dict(DRAFTER), commit="f" * 40)) as server:
        yield server


def write(folder: Path, **change: Any) -> None:
    sources = {"model": {"id": "tiny/model"}, "drafter": {"id": "tiny/drafter"}, **change}
    (folder / "tiny.yaml").write_text(profile_text(folder, **sources))


def environment(hub: Hub, folder: Path, **more: str) -> dict[str, str]:
    return {
        **os.environ,
        "HF_ENDPOINT": hub.url,
        "HF_HOME": str(folder / "hf"),
        "HF_HUB_DISABLE_XET": "1",
        "NO_PROXY": "*",
        **more,
    }


def argv(folder: Path, *options: str) -> list[str]:
    return [sys.executable, "-m", "launcher", "fetch", "--profile", "tiny", "--profiles-dir", str(folder), *options]


@pytest.fixture
def run(hub: Hub, tmp_path: Path) -> Run:
    def start(*options: str, **more: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            argv(tmp_path, *options), env=environment(hub, tmp_path, **more), capture_output=True, text=True
        )

    write(tmp_path)
    return start


def snapshot(folder: Path, name: str, commit: str = COMMIT) -> Path:
    return folder / "hf/hub" / f"models--tiny--{name}" / "snapshots" / commit


def test_model_and_drafter_come_whole_and_a_second_time_nothing_does(hub: Hub, run: Run, tmp_path: Path) -> None:
    done = run()
    assert done.returncode == 0, done.stderr
    assert "model tiny/model: 2 files" in done.stdout
    assert f"drafter tiny/drafter: complete in {snapshot(tmp_path, 'drafter', 'f' * 40)}" in done.stdout
    assert (snapshot(tmp_path, "model") / "model.safetensors").read_bytes() == WEIGHTS
    assert (snapshot(tmp_path, "drafter", "f" * 40) / "pytorch_model.bin").read_bytes() == DRAFTER["pytorch_model.bin"]
    assert not (snapshot(tmp_path, "model") / "original").exists()
    hub.seen.clear()
    assert run().returncode == 0
    assert not [path for method, path, _ in hub.seen if method == "GET" and "/resolve/" in path]


def test_a_pinned_commit_that_is_whole_asks_nobody(hub: Hub, run: Run, tmp_path: Path) -> None:
    write(tmp_path, drafter=None, model={"id": "tiny/model", "revision": COMMIT})
    assert run().returncode == 0
    hub.seen.clear()
    hub.broken = 503
    done = run()
    assert done.returncode == 0, done.stderr
    assert hub.seen == []


def test_a_cut_transfer_goes_on_where_it_broke(hub: Hub, run: Run, tmp_path: Path) -> None:
    """The client writes 10 MiB at a time, so of 22 MiB that came 20 are kept."""
    large = os.urandom(24 << 20)
    hub.repos["tiny/model"].files["model.safetensors"] = large
    hub.cuts["model.safetensors"] = [22 << 20]
    done = run()
    assert done.returncode == 0, done.stderr
    assert (snapshot(tmp_path, "model") / "model.safetensors").read_bytes() == large
    assert hub.downloads("model.safetensors") == ["", f"bytes={20 << 20}-"]


def test_after_a_kill_only_the_unfinished_file_comes_again(hub: Hub, run: Run, tmp_path: Path) -> None:
    write(tmp_path, drafter=None)
    assert run("--workers", "1").returncode == 0
    # As after a kill between two files: the snapshot has one of them, the listing says two.
    (snapshot(tmp_path, "model") / "model.safetensors").unlink()
    for blob in (tmp_path / "hf/hub/models--tiny--model/blobs").iterdir():
        if blob.stat().st_size == len(WEIGHTS):
            blob.unlink()
    assert run("--offline").returncode == 66
    hub.seen.clear()
    assert run().returncode == 0
    assert len(hub.downloads("model.safetensors")) == 1
    assert hub.downloads("config.json") == []
    assert run("--offline").returncode == 0


def test_offline_names_everything_that_is_missing(hub: Hub, run: Run) -> None:
    done = run("--offline")
    assert done.returncode == 66
    assert "model tiny/model, drafter tiny/drafter" in done.stderr
    assert hub.seen == []
    assert run().returncode == 0
    hub.seen.clear()
    done = run("--offline", HF_HUB_OFFLINE="1")
    assert done.returncode == 0, done.stderr
    assert "model tiny/model: complete" in done.stdout
    assert hub.seen == []


def test_an_unreachable_hub_is_75_and_a_whole_cache_serves_all_the_same(hub: Hub, run: Run) -> None:
    hub.broken = 500
    done = run(HF_HUB_DOWNLOAD_TIMEOUT="1")
    assert done.returncode == 75
    assert f"model tiny/model on {hub.url}" in done.stderr
    assert "try again" in done.stderr
    assert "Traceback" not in done.stderr
    hub.broken = 0
    assert run().returncode == 0
    hub.broken = 503
    done = run(HF_HUB_DOWNLOAD_TIMEOUT="1")
    assert done.returncode == 0, done.stderr
    assert "what is in the cache is whole and will do" in done.stdout


@pytest.mark.parametrize(
    ("change", "repo", "code", "said"),
    [
        ({"model": {"id": "tiny/modle"}}, None, 66, "there is no such repository; correct model.id"),
        (
            {"model": {"id": "tiny/model", "revision": "v9"}},
            None,
            66,
            "there is no such revision; correct model.revision",
        ),
        ({}, Repo(dict(MODEL), needs=TOKEN), 77, "set HF_TOKEN to a token that may read it"),
        ({}, Repo(dict(MODEL), needs=TOKEN, gate=True), 77, "is gated: accept its terms"),
    ],
)
def test_refusals_have_codes_and_say_what_to_do(
    hub: Hub, run: Run, tmp_path: Path, change: dict[str, Any], repo: Repo | None, code: int, said: str
) -> None:
    write(tmp_path, **change)
    if repo:
        hub.repos["tiny/model"] = repo
    done = run(HF_TOKEN="hf_wrong00000000000")
    assert done.returncode == code, done.stderr
    assert said in done.stderr
    assert "hf_wrong" not in done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    if repo:
        (tmp_path / "token").write_text(f"{TOKEN}\n")
        assert run(HF_TOKEN_FILE=str(tmp_path / "token")).returncode == 0


def test_two_fetchers_of_one_cache_take_turns(hub: Hub, tmp_path: Path) -> None:
    write(tmp_path)
    hub.open.clear()
    env = environment(hub, tmp_path)
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True, "env": env}
    with subprocess.Popen(argv(tmp_path), **pipes) as first:
        until(lambda: hub.downloads("model.safetensors"), "the first one downloads")
        with subprocess.Popen(argv(tmp_path), **pipes) as second:
            assert second.stdout is not None
            assert "waiting: another fetch holds" in second.stdout.readline()
            hub.open.set()
            text = first.communicate(timeout=60)[0]
            rest = second.communicate(timeout=60)[0]
    assert (first.returncode, second.returncode) == (0, 0), text + rest
    assert len(hub.downloads("model.safetensors")) == 1
    assert "0.00 GiB to fetch" in rest


def test_a_killed_fetcher_leaves_no_lock_behind(hub: Hub, run: Run, tmp_path: Path) -> None:
    hub.open.clear()
    with subprocess.Popen(
        argv(tmp_path), env=environment(hub, tmp_path), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ) as first:
        until(lambda: hub.downloads("model.safetensors"), "it downloads")
        first.send_signal(signal.SIGKILL)
    hub.open.set()
    done = run()
    assert done.returncode == 0
    assert "waiting" not in done.stdout


def test_a_cache_that_cannot_be_written_is_73(hub: Hub, run: Run, tmp_path: Path) -> None:
    (tmp_path / "hf").write_text("a file where the folder should be")
    done = run()
    assert done.returncode == 73
    assert f"uid {os.getuid()}" in done.stderr
    assert "set HF_HOME" in done.stderr


def test_a_disk_too_small_is_told_before_the_first_byte(
    hub: Hub, run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "sitecustomize.py").write_text(
        "import shutil\nshutil.disk_usage = lambda path: type('Usage', (), {'total': 9, 'used': 9, 'free': 1000})\n"
    )
    done = run(PYTHONPATH=f"{tmp_path}:{os.environ['PYTHONPATH']}")
    assert done.returncode == 73
    assert "make room or set HF_HOME" in done.stderr
    assert hub.downloads("model.safetensors") == []


def test_progress_is_told_in_a_log(hub: Hub, tmp_path: Path) -> None:
    write(tmp_path, drafter=None)
    code = (
        "from launcher import fetch, profiles; from pathlib import Path; import sys; fetch.TELL_SECONDS = 0.05;"
        "fetch.fetch(profiles.find('tiny', Path(sys.argv[1])), lambda line: print(line, flush=True))"
    )
    hub.open.clear()
    env = environment(hub, tmp_path)
    with subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path)], env=env, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        lines = iter(process.stdout.readline, "")
        assert any("of 0.00 GiB (0%)" in line for line in lines)
        hub.open.set()
        assert "complete in" in [*lines][-1]


def test_pin_writes_a_profile_that_is_the_same_with_commits(hub: Hub, run: Run, tmp_path: Path) -> None:
    pins = tmp_path / "pins"
    done = run("--pin", str(pins), "--json")
    assert done.returncode == 0, done.stderr
    assert [row["commit"] for row in json.loads(done.stdout)] == [COMMIT, "f" * 40]
    # The user's own file is called tiny too: a pin lies over a built-in one, or over a copy of this one.
    (tmp_path / "built-in").mkdir()
    text = (pins / "tiny.yaml").read_text()
    assert "extends: tiny" in text
    (pins / "pinned.yaml").write_text(text.replace("name: tiny", "name: pinned"))
    (tmp_path / "tiny.yaml").rename(pins / "base.yaml")
    base = (pins / "base.yaml").read_text().replace('"name": "tiny"', '"name": "base"')
    (pins / "base.yaml").write_text(base)
    (pins / "pinned.yaml").write_text((pins / "pinned.yaml").read_text().replace("extends: tiny", "extends: base"))
    found = profiles.find("pinned", pins)
    assert (found.model.id, found.model.revision) == ("tiny/model", COMMIT)
    assert found.drafter is not None
    assert found.drafter.revision == "f" * 40
    assert profiles.warnings(found) == []


def test_pin_overwrites_its_own_file_and_no_other(hub: Hub, run: Run, tmp_path: Path) -> None:
    assert run("--pin", str(tmp_path / "pins")).returncode == 0
    assert run("--pin", str(tmp_path / "pins")).returncode == 0
    done = run("--pin", str(tmp_path))
    assert done.returncode == 73
    assert "was not written by --pin" in done.stderr


def test_what_is_set_on_the_command_line_is_fetched(hub: Hub, run: Run) -> None:
    hub.repos["tiny/other"] = Repo({"config.json": b"{}"})
    done = run("--set", "model.id=tiny/other", "--set", "tokenizer={id: tiny/model}")
    assert done.returncode == 0, done.stderr
    assert "model tiny/other: complete" in done.stdout
    assert "tokenizer tiny/model: complete" in done.stdout


# What `serve` does of it.


@pytest.fixture
def hub_for_serve(hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Hub:
    for name, value in environment(hub, tmp_path).items():
        if name.startswith("HF_") or name == "NO_PROXY":
            monkeypatch.setenv(name, value)
    return hub


SOURCES = {"model": {"id": "tiny/model"}, "drafter": {"id": "tiny/drafter"}}


def test_serve_fetches_before_it_starts_vllm(hub_for_serve: Hub, serve: Any, tmp_path: Path) -> None:
    hub_for_serve.open.clear()
    served = serve(**SOURCES)
    until(lambda: hub_for_serve.downloads("model.safetensors"), "it downloads")
    assert served.status()["phase"] == "fetching"
    assert not (tmp_path / "notes/seen.json").exists()
    hub_for_serve.open.set()
    served.wait_ready()
    assert served.seen()["argv"][:2] == ["serve", "tiny/model"]
    assert (snapshot(tmp_path, "drafter", "f" * 40) / "config.json").exists()
    assert served.stop() == 0
    assert "drafter tiny/drafter: complete in" in served.log


def test_random_weights_are_not_fetched(hub_for_serve: Hub, serve: Any) -> None:
    served = serve("--", "--load-format", "dummy", **SOURCES)
    served.wait_ready()
    assert hub_for_serve.seen == []
    assert served.stop() == 0


def test_serve_stops_while_it_fetches(hub_for_serve: Hub, serve: Any, tmp_path: Path) -> None:
    hub_for_serve.open.clear()
    served = serve(**SOURCES)
    until(lambda: hub_for_serve.downloads("model.safetensors"), "it downloads")
    assert served.stop() == 0
    assert not (tmp_path / "notes/seen.json").exists()
    assert "stopped before vLLM was started" in served.log


def test_a_fetch_ends_with_a_launcher_that_was_killed(hub_for_serve: Hub, serve: Any) -> None:
    hub_for_serve.open.clear()
    served = serve(**SOURCES)
    until(lambda: hub_for_serve.downloads("model.safetensors"), "it downloads")
    children = psutil.Process(served.process.pid).children(recursive=True)
    assert any("launcher.fetchahead" in child.cmdline() for child in children)
    served.process.kill()
    _, alive = psutil.wait_procs(children, 60)
    assert not alive


@pytest.mark.parametrize(
    ("change", "more", "code", "said"),
    [
        ({"model": {"id": "tiny/modle"}}, {}, 66, "there is no such repository"),
        ({"model": {"id": "tiny/gated", "gated": True}}, {}, 77, "is gated"),
        ({}, {"HF_HUB_OFFLINE": "1"}, 66, "not complete in"),
    ],
)
def test_serve_ends_with_the_code_of_what_it_could_not_fetch(
    hub_for_serve: Hub,
    serve: Any,
    monkeypatch: pytest.MonkeyPatch,
    change: dict[str, Any],
    more: dict[str, str],
    code: int,
    said: str,
) -> None:
    hub_for_serve.repos["tiny/gated"] = Repo(dict(MODEL), needs=TOKEN, gate=True)
    for name, value in more.items():
        monkeypatch.setenv(name, value)
    served = serve(**{**SOURCES, **change})
    assert served.process.wait(60) == code
    assert said in served.log
    assert "Traceback" not in served.log
