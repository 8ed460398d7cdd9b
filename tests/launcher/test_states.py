"""The states: where they lead, and the time spent in each."""

from __future__ import annotations

import pytest

from launcher.states import ENDING, SERVING, START, Phase, Timeline


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def test_time_adds_up_over_several_visits_and_the_present_one_counts(clock: Clock) -> None:
    line = Timeline(clock, clock)
    for phase, seconds in [("loading", 3), ("packing", 2), ("loading", 5), ("capturing", 7), ("warming", 1)]:
        clock.now += seconds
        assert line.enter(Phase(phase))
    clock.now += 11
    wanted = {"fetching": 3, "loading": 2 + 7, "packing": 5, "capturing": 1, "warming": 11}
    assert line.durations() == {phase: wanted.get(phase, 0) for phase in Phase}
    assert line.since[Phase.LOADING] == 110


def test_a_restart_begins_the_durations_again_but_not_the_first_start(clock: Clock) -> None:
    line = Timeline(clock, clock)
    clock.now += 4
    line.begin(first=True)
    assert line.durations()[Phase.FETCHING] == 4
    clock.now += 5
    line.enter(Phase.READY)
    line.enter(Phase.FAILED)
    line.begin(first=False)
    clock.now += 1
    assert line.phase is Phase.LOADING
    assert {phase: seconds for phase, seconds in line.durations().items() if seconds} == {Phase.LOADING: 1}
    assert Phase.READY in line.since, "it was ready once"


@pytest.mark.parametrize("end", ENDING)
@pytest.mark.parametrize("phase", [*START, *SERVING])
def test_only_a_new_vllm_leads_out_of_an_end(end: Phase, phase: Phase) -> None:
    line = Timeline()
    line.enter(end)
    assert not line.enter(phase)
    assert line.phase is end


def test_from_draining_to_failed_and_no_second_entry() -> None:
    line = Timeline()
    assert line.enter(Phase.DRAINING)
    since = line.since[Phase.DRAINING]
    assert not line.enter(Phase.DRAINING)
    assert line.since[Phase.DRAINING] == since
    assert line.enter(Phase.FAILED)


def test_what_vllm_says_of_its_start_changes_nothing_later() -> None:
    line = Timeline()
    line.enter(Phase.READY)
    assert not line.enter(Phase.PACKING, only_from=START)
    assert line.phase is Phase.READY
