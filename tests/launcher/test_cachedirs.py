"""A cache folder of its own for every set of settings that changes a graph; nothing secret in its name."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from serving import profile_text

from launcher import cachedirs, plan, profiles
from launcher.cachedirs import INDUCTOR, ROOT, environment, namespace
from launcher.errors import CacheUnwritable
from radiance.settings import VARIABLES, Mode

#: settings that change no graph
FREE = {"RADIANCE_STATE_DIR", "RADIANCE_REQUIRE"}


def planned(tmp_path: Path, **environ: str) -> plan.ServePlan:
    (tmp_path / "tiny.yaml").write_text(profile_text(Path("/m")))
    return plan.build(profiles.read(tmp_path / "tiny.yaml"), plan.Options(), {"HOME": "/h", **environ})


def test_every_setting_that_changes_a_graph_changes_the_folder_and_no_other(tmp_path: Path) -> None:
    for name in ("a.txt", "b.txt"):
        (tmp_path / name).write_text(name)
    change = {
        "RADIANCE_FAST_DRAFT": "shadow",
        "RADIANCE_DRAFT_RERANK": "64",
        "RADIANCE_DRAFT_VOCAB": str(tmp_path / "a.txt"),
        "RADIANCE_SHADOW_SAMPLE": "9",
        "RADIANCE_REQUIRE": "ready",
        "RADIANCE_STATE_DIR": "/s",
    }
    assert change.keys() == VARIABLES.keys(), "a new setting: does it change a graph?"
    plain = planned(tmp_path).env[ROOT]
    found = {name: planned(tmp_path, **{name: value}).env[ROOT] for name, value in change.items()}
    for name, folder in found.items():
        assert (folder == plain) == (name in FREE), name
    assert len(set(found.values())) == len(found) - len(FREE) + 1
    other = planned(tmp_path, RADIANCE_DRAFT_VOCAB=str(tmp_path / "b.txt")).env[ROOT]
    assert other not in found.values()


def test_a_vocabulary_counts_by_its_content(tmp_path: Path) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    one.write_text("1 2 3")
    two.write_text("1 2 3")
    assert namespace(Mode.ON, 32, one, 0) == namespace(Mode.ON, 32, two, 0)
    two.write_text("1 2 4")
    assert namespace(Mode.ON, 32, one, 0) != namespace(Mode.ON, 32, two, 0)
    assert namespace(Mode.ON, 32, tmp_path / "gone", 0) != namespace(Mode.ON, 32, None, 0)


def test_the_stock_head_shares_vllms_own_folder(tmp_path: Path) -> None:
    assert ROOT not in planned(tmp_path, RADIANCE_FAST_DRAFT="0").env
    assert planned(tmp_path).fallback_env == {"RADIANCE_FAST_DRAFT": "0", ROOT: None, INDUCTOR: None}
    assert planned(tmp_path, VLLM_CACHE_ROOT="/c").fallback_env[ROOT] == "/c"


@pytest.mark.parametrize(
    ("environ", "root", "inductor"),
    [
        ({"HOME": "/h"}, "/h/.cache/vllm/radiance/n", "/h/.cache/vllm/radiance/n/inductor"),
        ({"HOME": "/h", "XDG_CACHE_HOME": "/x"}, "/x/vllm/radiance/n", "/x/vllm/radiance/n/inductor"),
        ({ROOT: "/c", INDUCTOR: "/i"}, "/c/radiance/n", "/i/radiance/n"),
    ],
)
def test_the_folders_are_below_the_ones_vllm_would_use(environ: dict[str, str], root: str, inductor: str) -> None:
    assert environment("n", environ) == {ROOT: root, INDUCTOR: inductor}


@given(
    st.dictionaries(
        st.sampled_from(["HF_TOKEN", "VLLM_API_KEY", "HOSTNAME", "POD_NAME", "PORT"]), st.text("abc123", min_size=6)
    )
)
def test_no_secret_and_no_name_of_a_pod_is_in_it(environ: dict[str, str]) -> None:
    name = namespace(Mode.ON, 32, None, 0)
    assert environment(name, {**environ, "HOME": "/h"}) == environment(name, {"HOME": "/h"})


def test_a_folder_that_cannot_be_written_is_73_with_path_uid_and_owner(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.touch()
    with pytest.raises(CacheUnwritable) as raised:
        cachedirs.check({ROOT: str(blocked / "deeper")})
    assert raised.value.exit_code == 73
    for part in (str(blocked), f"uid {os.getuid()}", f"{blocked.stat().st_uid}:", ROOT):
        assert part in str(raised.value)
    cachedirs.check({ROOT: str(tmp_path / "new" / "one")})
    assert (tmp_path / "new" / "one").is_dir()
