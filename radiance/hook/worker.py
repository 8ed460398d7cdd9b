"""What this worker process has: its status writer and its draft heads, of every engine that lives in it."""

from __future__ import annotations

import sys
import weakref
from typing import TYPE_CHECKING, Any

from radiance.settings import Settings

if TYPE_CHECKING:
    from radiance.head import DraftHead
    from radiance.telemetry import Telemetry

#: the status writer; started by the first drafter, so only worker processes have one
current: Telemetry | None = None
#: heads that are or may become active; weak, since an engine that is gone takes its own along
heads: weakref.WeakSet[DraftHead] = weakref.WeakSet()


def telemetry(settings: Settings, vllm_config: Any) -> Telemetry:
    """This process's status writer."""
    global current
    if current is None:
        import torch

        from radiance.telemetry import Telemetry

        distributed = torch.distributed.is_available() and torch.distributed.is_initialized()
        version = getattr(sys.modules.get("vllm"), "__version__", "")
        device = torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu"
        rank = torch.distributed.get_rank() if distributed else 0
        parallel = getattr(vllm_config, "parallel_config", None)
        engine = getattr(parallel, "data_parallel_index", getattr(parallel, "data_parallel_rank", 0)) or 0
        current = Telemetry(settings.state_dir, rank, version, device, engine)
    return current
