"""A trainer's weights come into a running CPU vLLM: the 2-bit head follows the target's and the drafter's."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.e2e.test_families import run

pytestmark = pytest.mark.e2e


Seen = dict[tuple[str, str], dict[str, Any]]


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> Seen:
    """(pair, head) -> what its engine saw."""
    folder = tmp_path_factory.mktemp("transfers")
    run("tests/bench/pairs.py", str(folder), "--kinds", "eagle,eagle3", "--hidden", "512", "--vocab", "4096")

    def of(kind: str, head: str) -> tuple[tuple[str, str], dict[str, Any]]:
        output = run("-m", "tests.e2e.transfers", str(folder), kind, str(int(head == "fast")))
        (line,) = [line for line in output.splitlines() if line.startswith("SEEN ")]
        return (kind, head), json.loads(line.removeprefix("SEEN "))

    with ThreadPoolExecutor(2) as pool:
        return dict(pool.map(of, ("eagle", "eagle", "eagle3", "eagle3"), ("fast", "stock", "fast", "stock")))


@pytest.mark.parametrize(
    ("kind", "phase"),
    [
        ("eagle", "before"),
        ("eagle", "target"),
        ("eagle", "draft"),
        ("eagle3", "before"),
        ("eagle3", "draft"),
        ("eagle3", "same"),
    ],
)
def test_drafts_are_accepted_as_with_the_stock_head(seen: Seen, kind: str, phase: str) -> None:
    fast, stock = seen[kind, "fast"][phase], seen[kind, "stock"][phase]
    assert (fast["head"], stock["head"]) == ("RadianceLMHead", "ParallelLMHead")
    assert fast["state"] == "active"
    assert fast["tokens"] == stock["tokens"]
    assert (fast["accepted"], fast["drafted"]) == (stock["accepted"], stock["drafted"])


@pytest.mark.parametrize("kind", ["eagle", "eagle3"])
def test_a_session_that_failed_leaves_ours_in_place(seen: Seen, kind: str) -> None:
    assert seen[kind, "fast"]["failed"] == {"error": "FileNotFoundError", "head": "RadianceLMHead"}


def rate(of: dict[str, Any]) -> float:
    return float(of["accepted"] / of["drafted"])


def test_the_targets_new_head_is_packed_and_the_drafters_new_layer_needs_no_packing(seen: Seen) -> None:
    fast = seen["eagle", "fast"]
    assert fast["target"]["tokens"] != fast["before"]["tokens"]
    assert [fast[phase]["repacked"] for phase in ("before", "target", "draft")] == [0, 1, 1]
    assert fast["before"]["calls"] < fast["target"]["calls"] < fast["draft"]["calls"]
    assert rate(fast["draft"]) > 1.2 * rate(fast["target"])


def test_a_drafters_own_new_head_is_packed(seen: Seen) -> None:
    fast = seen["eagle3", "fast"]
    assert [fast[phase]["repacked"] for phase in ("before", "draft", "same")] == [0, 1, 2]
    assert rate(fast["draft"]) < 0.02 < 0.15 < rate(fast["same"])
