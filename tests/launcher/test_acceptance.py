"""The histogram of accepted tokens per draft from vLLM's counters: by hand, and against a stream that was counted directly."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from launcher.acceptance import Acceptance, Floor, Keeper, Sample, Stall, from_samples


def counters(drafts: int, tokens: int, accepted: int, positions: list[int], engine: str = "0") -> list[Sample]:
    labels = {"model_name": "m", "engine": engine}
    rows: list[Sample] = [
        ("vllm:spec_decode_num_drafts_total", labels, drafts),
        ("vllm:spec_decode_num_draft_tokens_total", labels, tokens),
        ("vllm:spec_decode_num_accepted_tokens_total", labels, accepted),
        ("vllm:spec_decode_num_drafts_created", labels, 1.7e9),
        ("vllm:num_requests_running", labels, 3.0),
    ]
    return rows + [
        ("vllm:spec_decode_num_accepted_tokens_per_pos_total", labels | {"position": str(k)}, count)
        for k, count in enumerate(positions)
    ]


def test_by_hand() -> None:
    """10 drafts of 3: two accepted nothing, one 1 token, two 2 tokens, five all 3. So P = 8, 7, 5 and 20 tokens in all."""
    found = from_samples(counters(10, 30, 20, [8, 7, 5]))
    assert found == Acceptance(10, 30, 20, (8, 7, 5))
    assert found.buckets() == [("0.0", 2), ("1.0", 3), ("2.0", 5), ("+Inf", 10)]
    assert found.per_draft == 2.0


@pytest.mark.parametrize("seed", range(5))
def test_a_simulated_stream(seed: int) -> None:
    """Each draft has a length and a number of accepted tokens; what vLLM would count gives back the exact histogram."""
    chance = random.Random(seed)
    depth, drafts = chance.randint(1, 8), 2000
    direct: Counter[int] = Counter()
    tokens, positions = 0, [0] * depth
    for _ in range(drafts):
        length = chance.randint(1, depth)
        accepted = next((k for k in range(length) if chance.random() > 0.8), length)
        direct[accepted] += 1
        tokens += length
        for k in range(accepted):
            positions[k] += 1
    found = from_samples(counters(drafts, tokens, sum(positions), positions))
    assert found is not None
    wanted = [(f"{k}.0", sum(n for accepted, n in direct.items() if accepted <= k)) for k in range(depth)]
    assert found.buckets() == [*wanted, ("+Inf", drafts)]
    assert found.per_draft == sum(accepted * n for accepted, n in direct.items()) / drafts


def test_engines_are_summed_before_the_histogram_is_made() -> None:
    both = from_samples([*counters(10, 30, 20, [8, 7, 5], "0"), *counters(4, 4, 1, [1], "1")])
    assert both == Acceptance(14, 34, 21, (9, 7, 5))


def test_no_draft_yet_has_no_acceptance() -> None:
    found = from_samples(counters(0, 0, 0, [0, 0, 0]))
    assert found is not None
    assert found.per_draft is None
    assert found.buckets() == [("0.0", 0), ("1.0", 0), ("2.0", 0), ("+Inf", 0)]


def test_without_speculation_there_is_nothing() -> None:
    assert from_samples([("vllm:num_requests_running", {"engine": "0"}, 1.0)]) is None


def test_a_step_between_two_counters_cannot_break_the_histogram() -> None:
    """P read one step later than D: P[0] > D. Buckets stay between 0 and D and never fall."""
    found = from_samples(counters(10, 30, 22, [12, 6, 8]))
    assert found is not None
    counts = [count for _, count in found.buckets()]
    assert counts == sorted(counts)
    assert counts[0] >= 0
    assert counts[-1] == 10


def test_a_bucket_that_was_shown_never_falls() -> None:
    """P of a scrape is a step ahead of its D: D - P would fall by that step, which Prometheus takes for a restart."""
    keeper = Keeper(3)
    keeper.see(Acceptance(10, 30, 20, (8, 7, 5)), 1)
    keeper.see(Acceptance(10, 30, 23, (9, 8, 6)), 1)
    assert keeper.total.buckets() == [("0.0", 2), ("1.0", 3), ("2.0", 5), ("+Inf", 10)]
    keeper.see(Acceptance(11, 33, 23, (9, 8, 6)), 1)
    assert keeper.total.buckets() == [("0.0", 2), ("1.0", 3), ("2.0", 5), ("+Inf", 11)]


def test_a_new_life_of_vllm_continues_the_sums() -> None:
    keeper = Keeper(3)
    assert keeper.total == Acceptance(0, 0, 0, (0, 0, 0))
    keeper.see(Acceptance(10, 30, 20, (8, 7, 5)), 1)
    keeper.see(Acceptance(40, 120, 80, (32, 28, 20)), 2)  # more drafts than before: only the life tells them apart
    assert keeper.total.drafts == 50
    assert keeper.total.per_position == (40, 35, 25)
    assert keeper.total.buckets() == [("0.0", 10), ("1.0", 15), ("2.0", 25), ("+Inf", 50)]


def test_a_reading_that_lacks_an_engine_takes_nothing_back_and_adds_nothing() -> None:
    """Of one vLLM: added up like a restart, its figures would count twice for ever."""
    keeper = Keeper(1)
    keeper.see(Acceptance(10, 10, 8, (8,)), 1)
    keeper.see(Acceptance(4, 4, 1, (1,)), 1)
    assert (keeper.total.drafts, keeper.total.accepted_tokens, keeper.total.per_position) == (10, 8, (8,))
    keeper.see(Acceptance(12, 12, 9, (9,)), 1)
    assert (keeper.total.drafts, keeper.total.accepted_tokens, keeper.total.per_position) == (12, 9, (9,))


@pytest.mark.parametrize("seed", range(5))
def test_whatever_is_torn_or_restarted_nothing_falls(seed: int) -> None:
    """Counters read one after the other while steps go on, with restarts: every exported figure only grows."""
    chance, keeper = random.Random(seed), Keeper(3)
    life, drafts, positions = 1, 0, [0, 0, 0]
    before: list[float] = []

    def step() -> None:
        nonlocal drafts
        accepted = chance.randint(0, 3)
        drafts += 1
        for k in range(accepted):
            positions[k] += 1

    for _ in range(400):
        if chance.random() < 0.02:
            life, drafts, positions = life + 1, 0, [0, 0, 0]
        for _ in range(chance.randint(0, 3)):
            step()
        first = drafts
        for _ in range(chance.randint(0, 2)):
            step()
        keeper.see(Acceptance(first, 3 * first, sum(positions), tuple(positions)), life)
        now = [keeper.total.drafts, keeper.total.accepted_tokens, *keeper.total.per_position]
        now += [count for _, count in keeper.total.buckets()]
        assert all(a <= b for a, b in zip(before, now, strict=False))
        before = [*now]


def test_wedged_is_running_requests_without_progress_for_long_enough() -> None:
    stall = Stall(100.0)
    assert [stall.see(now, 1, running=2, progress=7) for now in (1000.0, 1050.0, 1099.0, 1100.0)] == [False] * 3 + [
        True
    ]
    assert not stall.see(1101.0, 1, running=2, progress=8), "a token ends it"
    assert not stall.see(1200.0, 1, running=2, progress=8)
    assert stall.see(1201.0, 1, running=2, progress=8)
    assert not stall.see(1202.0, 2, running=2, progress=8), "a new vLLM starts afresh"


def test_an_idle_server_is_not_wedged() -> None:
    stall = Stall(100.0)
    assert not any(stall.see(now, 1, running=0, progress=7) for now in (0.0, 500.0, 1000.0))
    assert not stall.see(1050.0, 1, running=1, progress=7), "the first request after a long rest has its time"
    assert stall.see(1101.0, 1, running=1, progress=7)


def pieces(floor: Floor, *rates: float, step: float = 10.0, drafts: int = 200) -> list[bool]:
    """What the floor says after each piece of drafts that were accepted at that rate, one every `step` seconds."""
    answers, found, now = [], Acceptance(), 0.0
    floor.see(now, found)
    for rate in rates:
        now += step
        found = Acceptance(found.drafts + drafts, 0, found.accepted_tokens + int(rate * drafts))
        answers.append(floor.see(now, found))
    return answers


def test_only_a_floor_missed_for_the_whole_time_counts() -> None:
    assert pieces(Floor(2.0, 30.0), 1, 1, 1, 1) == [False, False, True, True]
    assert pieces(Floor(2.0, 30.0), 1, 1, 2, 1, 1, 1) == [False, False, False, False, False, True], (
        "one good piece begins anew"
    )
    assert pieces(Floor(2.0, 30.0), 3, 3, 3, 3) == [False] * 4


def test_too_few_drafts_decide_nothing_however_long_it_takes() -> None:
    assert not any(pieces(Floor(2.0, 30.0), *[0.0] * 19, step=1000.0, drafts=10))
