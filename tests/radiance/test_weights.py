"""Sessions of a weight transfer: a drafter gets back its own heads for the time that vLLM takes its modules apart."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from radiance.hook import weights
from radiance.hook.module import RadianceLMHead


class Ours(RadianceLMHead, torch.nn.Module):
    def __init__(self, source: torch.nn.Module) -> None:
        super().__init__()
        self.__dict__["source"] = source


class Drafter(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stock = (torch.nn.Linear(2, 2),)  # not a submodule
        self.lm_head = Ours(self.stock[0])
        self.layers = torch.nn.ModuleList([torch.nn.Module()])
        self.layers[0].head = self.lm_head

    def heads(self) -> list[torch.nn.Module]:
        return [self.lm_head, self.layers[0].head]


def made() -> Any:
    """A worker with vLLM's sessions, whose methods fail when `fails` names them; `seen`: the drafter's heads at each."""

    class Worker:
        def __init__(self) -> None:
            self.drafter = Drafter()
            self.fails = ""
            self._weight_update_active = False
            self.seen: list[list[torch.nn.Module]] = []

        def get_draft_model(self) -> Drafter:
            return self.drafter

        def reload_weights(self) -> None: ...

        def _start_weight_update(self, is_draft: bool = False) -> None:
            if self._weight_update_active or self.fails == "start":
                raise RuntimeError("start")
            self._weight_update_active = True
            self.seen.append(self.drafter.heads())

        def update_weights(self, update_info: dict[str, Any]) -> None:
            self.seen.append(self.drafter.heads())
            if self.fails == "update":
                self._weight_update_active = False
                raise RuntimeError("update")

        def finish_weight_update(self) -> None:
            self.seen.append(self.drafter.heads())
            if self.fails == "finish":
                raise RuntimeError("finish")  # and the session stays open, as in vLLM
            self._weight_update_active = False

        def wake_up(self, tags: list[str] | None = None) -> None:
            self.seen.append(self.drafter.heads())

    weights.wrap(SimpleNamespace(Worker=Worker))  # type: ignore[arg-type]
    return Worker()


def session(worker: Any, **how: bool) -> None:
    worker._start_weight_update(**how)
    worker.update_weights({})
    worker.finish_weight_update()


def test_in_a_session_of_the_drafter_it_has_its_own_heads(monkeypatch: pytest.MonkeyPatch) -> None:
    followed: list[list[torch.nn.Module]] = []
    worker = made()
    ours, (stock,) = worker.drafter.lm_head, worker.drafter.stock
    monkeypatch.setattr(weights, "follow", lambda: followed.append(worker.drafter.heads()))
    session(worker, is_draft=True)
    assert worker.seen == [[stock, stock]] * 3
    assert followed == [[ours, ours]]
    session(worker)
    assert worker.seen[3:] == [[ours, ours]] * 3  # the target's modules are none of ours
    assert len(followed) == 2


@pytest.mark.parametrize("fails", ["start", "update"])
def test_a_session_that_fails_leaves_ours_in_place(fails: str, monkeypatch: pytest.MonkeyPatch) -> None:
    followed: list[str] = []
    monkeypatch.setattr(weights, "follow", lambda: followed.append(fails))
    worker = made()
    ours = worker.drafter.lm_head
    worker.fails = fails
    with pytest.raises(RuntimeError, match=fails):
        session(worker, is_draft=True)
    assert worker.drafter.heads() == [ours, ours]
    assert followed == ([fails] if fails == "update" else [])  # some of the weights may have come
    worker.fails = ""
    session(worker, is_draft=True)
    assert worker.drafter.heads() == [ours, ours]


def test_a_finish_that_failed_can_be_tried_again() -> None:
    """vLLM leaves the session open; its modules are still apart, and ours must not be among them."""
    worker = made()
    ours, (stock,) = worker.drafter.lm_head, worker.drafter.stock
    worker.fails = "finish"
    with pytest.raises(RuntimeError, match="finish"):
        session(worker, is_draft=True)
    assert worker.drafter.heads() == [stock, stock]
    worker.fails = ""
    worker.finish_weight_update()
    assert worker.seen[-1] == [stock, stock]
    assert worker.drafter.heads() == [ours, ours]


def test_a_session_of_the_target_in_which_one_of_the_drafter_is_asked_for() -> None:
    worker = made()
    ours = worker.drafter.lm_head
    worker._start_weight_update()
    with pytest.raises(RuntimeError):
        worker._start_weight_update(is_draft=True)
    assert worker.drafter.heads() == [ours, ours]


def test_waking_follows_where_the_weights_are_awake(monkeypatch: pytest.MonkeyPatch) -> None:
    followed: list[bool] = []
    monkeypatch.setattr(weights, "follow", lambda *, woken: followed.append(woken))
    worker = made()
    worker.wake_up(["kv_cache"])  # the weights' memory may not be mapped
    assert followed == []
    worker.wake_up(["weights"])
    worker.wake_up()
    assert followed == [True, True]


def test_a_second_session_is_refused_and_the_first_goes_on() -> None:
    worker = made()
    ours, (stock,) = worker.drafter.lm_head, worker.drafter.stock
    worker._start_weight_update(is_draft=True)
    with pytest.raises(RuntimeError):
        worker._start_weight_update(is_draft=True)
    assert worker.drafter.heads() == [stock, stock]
    worker.finish_weight_update()
    assert worker.drafter.heads() == [ours, ours]
