"""What this worker process has: its status writer and its draft heads, of every engine that lives in it."""

from __future__ import annotations

import sys
import weakref
from typing import TYPE_CHECKING, Any

from radiance.settings import Settings

if TYPE_CHECKING:
    from radiance.head import DraftHead
    from radiance.telemetry import Telemetry

#: the status writer; started by the first drafter, or by a module of vLLM that lacks a seam
current: Telemetry | None = None
#: heads that are or may become active; weak, since an engine that is gone takes its own along
heads: weakref.WeakSet[DraftHead] = weakref.WeakSet()


def telemetry(settings: Settings, vllm_config: Any) -> Telemetry:
    """This process's status writer. `vllm_config` None: too early to know the rank and the engine; a later call with one
    fills them in."""
    global current
    import torch

    from radiance.telemetry import Telemetry

    distributed = torch.distributed.is_available() and torch.distributed.is_initialized()
    rank = torch.distributed.get_rank() if distributed else 0
    parallel = getattr(vllm_config, "parallel_config", None)
    engine = getattr(parallel, "data_parallel_index", getattr(parallel, "data_parallel_rank", 0)) or 0
    if current is None:
        version = getattr(sys.modules.get("vllm"), "__version__", "")
        device = torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu"
        current = Telemetry(settings.state_dir, rank, version, device, engine)
    elif vllm_config is not None:
        current.place(settings.state_dir, rank, engine)
    return current
