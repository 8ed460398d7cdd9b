"""After weights were replaced under a running engine, heads that changed are packed again, into the same memory.

Graphs hold the addresses of the packed copy, so it is overwritten in place. Sleep of level 1 brings all of ours back with the
weights. Level 2 throws it away with them: it is packed again when they are back, by vLLM itself at wake_up
(sleep_preserve_parameter_names), by reload_weights or by a transfer. Whoever loads weights otherwise calls follow() afterwards.

Weight transfer, from a trainer, has sessions, of the target or of the drafter. Loading takes the target model's modules apart and puts
them together; those of a drafter too, so for that time it gets back the heads that ours stand for.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
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
    imports.wrap(owner, "wake_up", _wake_up, optional=True)
    for name, make in zip(_SESSION, (_start, _may_end, _may_end), strict=True):
        imports.wrap(owner, name, make, optional=True)


def sessions_are_followed() -> bool:
    """True if vLLM's Worker has all that a session goes through."""
    module = sys.modules.get("vllm.v1.worker.gpu_worker")
    return module is not None and all(hasattr(getattr(module.Worker, name, None), "__radiance__") for name in _SESSION)


def follow(*, woken: bool = False) -> None:
    """Compare every head of this process with its source, and pack what differs. Never raises. `woken`: only what slept; the
    weights may still be missing."""
    import torch

    with torch.no_grad():
        for draft in list(worker.heads):
            try:
                draft.follow_weights(woken=woken)
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


def _wake_up(original: Callable[..., Any]) -> Callable[..., Any]:
    def wake_up(self: Any, tags: list[str] | None = None) -> Any:
        result = original(self, tags)
        if tags is None or "weights" in tags:  # else their memory may not be there yet
            follow(woken=True)
        return result

    return wake_up


def _start(original: Callable[..., Any]) -> Callable[..., Any]:
    def start(self: Any, is_draft: bool = False) -> Any:
        if not is_draft or self in _lent:  # in a session of the drafter: vLLM is about to refuse another
            return original(self, is_draft)
        _lend(self)
        try:
            return original(self, is_draft)
        except BaseException:
            _take_back(self)
            raise

    return start


def _may_end(original: Callable[..., Any]) -> Callable[..., Any]:
    """If vLLM's session is over after this, well or not, ours are put back and follow what has come in. A finish that failed
    leaves it open, to be tried again."""

    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            return original(self, *args, **kwargs)
        finally:
            if not getattr(self, "_weight_update_active", False):
                _take_back(self)
                follow()

    return method


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
