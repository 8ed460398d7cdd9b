"""What a command line adds to a profile, as a value. commands/ makes the options, plan.py and supervise.py read them."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from launcher.logs import Form


class OnWedge(StrEnum):
    RESTART = "restart"
    REPORT = "report"


@dataclass(frozen=True)
class Options:
    """Times are seconds."""

    host: str = "0.0.0.0"
    port: int = 8000
    metrics_host: str = "0.0.0.0"
    metrics_port: int = 9410
    vllm: str = "vllm"
    grace_seconds: float = 30.0
    warm_up: bool = True
    extra: tuple[str, ...] = ()
    #: running requests and no token for so long: wedged
    wedge_seconds: float = 120.0
    #: vLLM's own metrics on the launcher's port too
    passthrough: bool = False
    #: FIELD=VALUE over everything else
    sets: tuple[str, ...] = ()
    #: not ready any more, but still serving, before vLLM is told to end
    drain_delay_seconds: float = 0.0
    max_restarts: int = 3
    restart_delay_seconds: float = 1.0
    on_wedge: OnWedge = OnWedge.RESTART
    #: acceptance under the profile's floor for so long: restart with the stock head; None: never
    fallback_after_seconds: float | None = None
    log_format: Form = Form.TEXT
    termination_log: Path | None = None
    api_key_file: Path | None = None

    @property
    def drain_seconds(self) -> int:
        """vLLM's --shutdown-timeout. It needs some seconds after it to end its workers, before the grace is over."""
        return int(max(self.grace_seconds - 10, self.grace_seconds / 2))
