"""After weights were replaced under a running engine, heads that changed are packed again, into the same memory.

Graphs hold the addresses of the packed copy, so it is overwritten in place. Sleep needs no seam of its own: level 1 brings
all of ours back with the weights; level 2 throws it away with them, and reload_weights, which must follow, comes here.

Weight transfer, from a trainer, has sessions, of the target or of the drafter. Loading takes the target model's modules apart and puts
them together; those of a drafter too, so for that time it gets back the heads that ours stand for.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any
from weakref import WeakKeyDictionary

from radiance.hook import imports, worker
from radiance.hook.module import RadianceLMHead

log = logging.getLogger("vllm.radiance")

#: worker -> (parent, attribute, our head) in its drafter, while a session of the drafter's weights is open
_lent: WeakKeyDictionary[Any, list[tuple[Any, str, Any]]] = WeakKeyDictionary()
#: methods of vLLM's Worker that a transfer session goes through
_SESSION = ("_start_weight_update", "update_weights", "finish_weight_update")


def wrap(module: ModuleType) -> None:
    owner = module.Worker
    imports.wrap(owner, "reload_weights", _then_follow)
    for name, make in zip(_SESSION, (_start, _update, _finish), strict=True):
        imports.wrap(owner, name, make, optional=True)


def sessions_are_followed() -> bool:
    """True if vLLM's Worker has all that a session goes through."""
    module = sys.modules.get("vllm.v1.worker.gpu_worker")
    return module is not None and all(hasattr(getattr(module.Worker, name, None), "__radiance__") for name in _SESSION)


def follow() -> None:
    """Compare every head of this process with its source, and pack what differs. Never raises."""
    import torch

    with torch.no_grad():
        for draft in list(worker.heads):
            try:
                draft.follow_weights()
            except Exception as error:  # an exception on one rank would end the reload on that rank alone
                log.exception("Radiance draft head %s: following the new weights failed", draft.status.name)
                draft.decline("packing_failed", repr(error))
    if worker.current is not None:
        worker.current.flush()


def _then_follow(original: Callable[..., Any]) -> Callable[..., Any]:
    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        result = original(self, *args, **kwargs)
        follow()
        return result

    return method


def _start(original: Callable[..., Any]) -> Callable[..., Any]:
    def start(self: Any, is_draft: bool = False) -> Any:
        if not is_draft or self in _lent:  # in a session of the drafter: vLLM is about to refuse another
            return original(self, is_draft)
        _lend(self)
        with _taken_back_if_it_fails(self):
            return original(self, is_draft)

    return start


def _update(original: Callable[..., Any]) -> Callable[..., Any]:
    def update(self: Any, *args: Any, **kwargs: Any) -> Any:
        with _taken_back_if_it_fails(self):  # the session is over then
            return original(self, *args, **kwargs)

    return update


def _finish(original: Callable[..., Any]) -> Callable[..., Any]:
    def finish(self: Any, *args: Any, **kwargs: Any) -> Any:
        with _taken_back_if_it_fails(self):
            result = original(self, *args, **kwargs)
        _take_back(self)
        follow()
        return result

    return finish


def _lend(owner: Any) -> None:
    model = owner.get_draft_model()
    places = [] if model is None else [
        (parent, name, child) for parent in model.modules() for name, child in parent._modules.items()
        if isinstance(child, RadianceLMHead)
    ]  # fmt: skip
    for parent, name, child in places:
        parent._modules[name] = child.source
    _lent[owner] = places


def _take_back(owner: Any) -> None:
    for parent, name, child in _lent.pop(owner, []):
        parent._modules[name] = child


@contextmanager
def _taken_back_if_it_fails(owner: Any) -> Iterator[None]:
    try:
        yield
    except BaseException:
        _take_back(owner)
        raise
