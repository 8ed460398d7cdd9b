"""The vote of tensor parallel ranks, on torch's own store, with ranks as threads."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest
from torch.distributed import HashStore

from radiance.hook import ranks

LONG, SHORT = timedelta(seconds=30), timedelta(milliseconds=200)


def vote(store: HashStore, votes: list[str | None], patience: timedelta = LONG) -> list[str]:
    """What each rank is told; None: a rank where the plugin is off, which never votes."""
    with ThreadPoolExecutor(len(votes)) as pool:
        told = [
            pool.submit(ranks.decide, store, "radiance/tp/1", rank, len(votes), one, patience)
            for rank, one in enumerate(votes)
            if one is not None
        ]
        return [future.result(60) for future in told]


@pytest.mark.parametrize(
    ("votes", "told"),
    [
        (["ids", "ids", "ids"], "ids"),
        (["rows", "rows"], "rows"),
        (["ids", "no", "ids"], "no"),
        (["ids", "rows"], "no"),  # one would gather pairs, the other whole rows
        (["no", "no"], "no"),
    ],
)
def test_all_or_none(votes: list[str | None], told: str) -> None:
    assert vote(HashStore(), votes) == [told] * len(votes)


def test_a_rank_without_the_plugin_does_not_hang_the_others(caplog: pytest.LogCaptureFixture) -> None:
    assert vote(HashStore(), ["ids", None], SHORT) == ["no"]
    assert "is the plugin on in all of them?" in caplog.text


def test_a_rank_that_comes_after_the_others_gave_up_is_told_no() -> None:
    store = HashStore()
    assert vote(store, ["ids", None], SHORT) == ["no"]
    late: list[str] = []
    thread = threading.Thread(target=lambda: late.append(ranks.decide(store, "radiance/tp/1", 1, 2, "ids", LONG)))
    thread.start()
    thread.join(60)
    assert late == ["no"]
