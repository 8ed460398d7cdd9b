"""The embedded model's preparation, with small stand-ins for the wheel and the converter; the real one runs in the demo."""

from __future__ import annotations

import hashlib
import json
import os
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from launcher import smollm2
from launcher.errors import ModelMissing

CONTENT = b"a gguf file"
Ready = Callable[..., list[list[str]]]


@pytest.fixture
def source(monkeypatch: pytest.MonkeyPatch) -> Ready:
    """Replaces the two child processes: what pip would leave, what the converter would write. Gives the commands seen."""

    def prepare(content: bytes = CONTENT, names: tuple[str, ...] = (smollm2.GGUF, smollm2.LICENCE)) -> list[list[str]]:
        seen: list[list[str]] = []

        def run(argv: list[str], hint: str, say: smollm2.Say, stop: smollm2.Stop) -> None:
            seen.append(argv)
            if "download" in argv:
                with zipfile.ZipFile(Path(argv[argv.index("--dest") + 1]) / "some.whl", "w") as wheel:
                    for name in names:
                        wheel.writestr(name, content if name == smollm2.GGUF else b"Apache License")
            else:
                (Path(argv[-1]) / "config.json").write_text("{}")

        monkeypatch.setattr(smollm2, "_run", run)
        monkeypatch.setattr(smollm2, "GGUF_SHA256", hashlib.sha256(CONTENT).hexdigest())
        return seen

    return prepare


def test_it_is_made_once_whole_and_with_its_licence(source: Ready, tmp_path: Path) -> None:
    seen, said = source(), []
    folder = tmp_path / "models" / "m"
    smollm2.prepare(folder, said.append)
    assert smollm2.problem(folder) == ""
    assert (folder / "LICENSE").read_bytes() == b"Apache License"
    assert json.loads((folder / "manifest.json").read_text())["source"] == smollm2.PACKAGE
    assert any("1/3" in line for line in said)
    assert smollm2.PACKAGE in seen[0]
    smollm2.prepare(folder, said.append)
    assert len(seen) == 2
    assert os.listdir(folder.parent) == ["m"]


def test_a_file_with_another_hash_is_not_used_and_both_are_named(source: Ready, tmp_path: Path) -> None:
    source(content=b"something else")
    with pytest.raises(ModelMissing, match=hashlib.sha256(b"something else").hexdigest()) as caught:
        smollm2.prepare(tmp_path / "m", lambda _: None)
    assert smollm2.GGUF_SHA256 in str(caught.value)
    assert caught.value.exit_code == 66
    assert os.listdir(tmp_path) == []


def test_a_wheel_without_the_file_is_a_clear_error(source: Ready, tmp_path: Path) -> None:
    source(names=("x",))
    with pytest.raises(ModelMissing, match="cannot take"):
        smollm2.prepare(tmp_path / "m", lambda _: None)
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("damage", ["change", "remove", "manifest"])
def test_a_damaged_folder_is_made_anew(source: Ready, tmp_path: Path, damage: str) -> None:
    seen = source()
    folder = tmp_path / "m"
    smollm2.prepare(folder, lambda _: None)
    if damage == "change":
        (folder / "config.json").write_text('{"x": 1}')
    elif damage == "remove":
        (folder / "config.json").unlink()
    else:
        (folder / "manifest.json").write_text("[")
    assert smollm2.problem(folder)
    smollm2.prepare(folder, lambda _: None)
    assert smollm2.problem(folder) == ""
    assert len(seen) == 4


def test_an_older_conversion_is_made_anew(source: Ready, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source()
    smollm2.prepare(tmp_path / "m", lambda _: None)
    monkeypatch.setattr(smollm2, "CONVERSION", smollm2.CONVERSION + 1)
    assert "another version" in smollm2.problem(tmp_path / "m")


def test_a_child_that_fails_shows_its_own_words(tmp_path: Path) -> None:
    with pytest.raises(ModelMissing, match=r"ended with 1; hint:\nsome trouble"):
        smollm2._run(["sh", "-c", "echo some trouble; exit 1"], "hint", lambda _: None, lambda: False)


def test_a_stop_request_ends_the_child(tmp_path: Path) -> None:
    with pytest.raises(smollm2.Stopped):
        smollm2._run(
            ["sh", "-c", f"echo $$ > {tmp_path}/pid; exec sleep 600"], "", lambda _: None, (tmp_path / "pid").exists
        )
    pid = int((tmp_path / "pid").read_text() or 0)
    assert not pid or not Path(f"/proc/{pid}").exists()


def test_an_unwritable_cache_is_66(source: Ready, tmp_path: Path) -> None:
    source()
    (tmp_path / "file").write_text("")
    with pytest.raises(ModelMissing, match="XDG_CACHE_HOME"):
        smollm2.prepare(tmp_path / "file" / "m", lambda _: None)


def test_an_image_can_bring_the_model_along(source: Ready, tmp_path: Path) -> None:
    """SMOLLM2_FOLDER wins over the cache, empty is unset, and a whole folder is used without writing or fetching anything."""
    home = {"HOME": str(tmp_path), "SMOLLM2_FOLDER": ""}
    assert smollm2.folder(home) == tmp_path / ".cache" / "radiance" / "models" / smollm2.NAME
    seen = source()
    baked = smollm2.folder({**home, "SMOLLM2_FOLDER": str(tmp_path / "image" / "m")})
    smollm2.prepare(baked, lambda _: None)
    baked.parent.chmod(0o555)
    before = len(seen)
    smollm2.prepare(baked, lambda _: None)
    assert baked == tmp_path / "image" / "m"
    assert len(seen) == before
