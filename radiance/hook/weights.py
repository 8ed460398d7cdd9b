"""After weights were replaced under a running engine, heads that changed are packed again, into the same memory.

Graphs hold the addresses of the packed copy, so it is overwritten in place. Sleep needs no seam: level 1 brings the packed
copy back with the weights; after level 2 the head is unknown until reload_weights, and comes here.
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

    for name in ("reload_weights", "finish_weight_update"):
        imports.wrap(module.Worker, name, make, optional=True)


def follow() -> None:
    """Compare every head of this process with its source, and pack what differs. Never raises."""
    import torch

    with torch.no_grad():
        for draft in list(worker.heads):
            draft.follow_weights()
    if worker.current is not None:
        worker.current.flush()
