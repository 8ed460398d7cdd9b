"""After weights were replaced under a running engine, heads that changed are packed again, into the same memory.

Graphs hold the addresses of the packed copy, so it is overwritten in place. Sleep needs no seam of its own: level 1 brings
all of ours back with the weights; level 2 throws it away with them, and reload_weights, which must follow, comes here.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from types import ModuleType
from typing import Any

from radiance.hook import imports, worker

log = logging.getLogger("vllm.radiance")


def wrap(module: ModuleType) -> None:
    def make(original: Callable[..., Any]) -> Callable[..., Any]:
        def method(self: Any, *args: Any, **kwargs: Any) -> Any:
            result = original(self, *args, **kwargs)
            follow()
            return result

        return method

    imports.wrap(module.Worker, "reload_weights", make)


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
