"""What vLLM inherits: the environment less all that a stronger word took away, and the same on every screen."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from launcher import explain, plan, profiles
from launcher.errors import UsageProblem
from launcher.plan import Options
from launcher.schema import PLACES

HOME = {"HOME": "/home/me"}


@pytest.mark.parametrize(
    ("name", "value", "taken"),
    [
        ("RADIANCE_DRAFT_RERANK", "64", "rerank"),
        ("RADIANCE_SHADOW_SAMPLE", "8", "shadow_sample"),
        ("RADIANCE_DRAFT_VOCAB", "/data/vocab", "draft_vocab"),
        ("OMP_NUM_THREADS", "8", "env.OMP_NUM_THREADS"),
        ("OMP_NUM_THREADS", "8", "env"),
        ("NCCL_DEBUG", "INFO", "env.NCCL_DEBUG"),
    ],
)
def test_what_set_takes_away_is_not_inherited_by_vllm(tiny: Any, name: str, value: str, taken: str) -> None:
    """The plan alone is not what vLLM gets: it inherits what the plan does not name."""
    user, profile = HOME | {name: value}, tiny(env={"OMP_NUM_THREADS": "1"})
    assert plan.build(profile, Options(), user).environment(user)[name] == value
    planned = plan.build(profile, Options(sets=(f"{taken}=null",)), user)
    assert name not in planned.environment(user)
    assert planned.environment(user)["HOME"] == "/home/me"
    (row,) = [row for row in explain.rows(planned, {}) if row.key == f"environment.{name}"]
    assert (row.value, row.source) == (None, "launcher")
    assert any(note.startswith(name) and f"--set {taken} takes it away" in note for note in planned.notes)


def test_graphs_of_a_vocabulary_that_is_taken_away_are_not_used_without_it(tiny: Any) -> None:
    user = HOME | {"RADIANCE_DRAFT_VOCAB": "/data/vocab"}
    given = plan.build(tiny(), Options(), user).environment(user)
    without = plan.build(tiny(), Options(sets=("draft_vocab=null",)), user).environment(user)
    assert "RADIANCE_DRAFT_VOCAB" in given
    assert "RADIANCE_DRAFT_VOCAB" not in without
    assert given["VLLM_CACHE_ROOT"] != without["VLLM_CACHE_ROOT"]


def test_the_environment_wins_over_a_file_that_takes_a_variable_away(tiny: Any, tmp_path: Path) -> None:
    tiny(env={"OMP_NUM_THREADS": "1"})
    child = {"schema_version": 1, "name": "child", "extends": "tiny", "env": {"OMP_NUM_THREADS": None}}
    (tmp_path / "child.yaml").write_text(json.dumps(child))
    layers = profiles.stack("child", tmp_path)
    assert "OMP_NUM_THREADS" not in plan.build(layers, Options(), HOME).environment(HOME)
    user = HOME | {"OMP_NUM_THREADS": "8"}
    planned = plan.build(layers, Options(), user)
    assert planned.environment(user)["OMP_NUM_THREADS"] == "8"
    assert planned.settled.profile.env == {"OMP_NUM_THREADS": "8"}


def test_a_secret_that_set_takes_away_is_neither_passed_nor_shown(tiny: Any) -> None:
    user = HOME | {"HF_TOKEN": "hf_0123456789"}
    planned = plan.build(tiny(), Options(sets=("env.HF_TOKEN=null",)), user)
    assert "HF_TOKEN" not in planned.environment(user)
    assert planned.secrets == ()
    assert "hf_0123456789" not in plan.to_json(planned, user) + repr(planned.notes)


@pytest.mark.parametrize("name", PLACES)
@pytest.mark.parametrize("value", ["/x", "null"])
def test_set_moves_nothing_that_the_launcher_reads_too(name: str, value: str) -> None:
    with pytest.raises(UsageProblem, match=name):
        plan.build(profiles.stack("smollm2-cpu"), Options(sets=(f"env.{name}={value}",)), HOME | {name: "/y"})
