"""The command-line options of supervision: how a server is started, watched, restarted and stopped. Made for cli.py."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from launcher.logs import Form
from launcher.options import OnWedge, Options

DEFAULT = Options()


def _seconds(name: str, text: str, low: float = 0, default: float | None = None) -> Any:
    return click.option(name, type=click.FloatRange(low), default=default, show_default=default is not None, help=text)


SUPERVISION = [
    click.option("--warm-up/--no-warm-up", default=True, show_default=True,
                 help="Make a greedy and a sampled completion before being ready."),
    _seconds("--drain-delay-seconds", "After SIGTERM, stay up but not ready for so long, until no new requests are sent here.",
             default=DEFAULT.drain_delay_seconds),
    _seconds("--grace-seconds", "Then running requests may end; after so long vLLM is killed.", default=DEFAULT.grace_seconds),
    click.option("--max-restarts", type=click.IntRange(0), default=DEFAULT.max_restarts, show_default=True,
                 help="Times a vLLM that has been ready may be started again in 30 minutes."),
    _seconds("--restart-delay-seconds", "Before the first restart; four times as long before each further one.",
             default=DEFAULT.restart_delay_seconds),
    _seconds("--wedge-seconds", "Running requests and no token, or no answer from /health, for so long: vLLM is wedged.",
             low=1, default=DEFAULT.wedge_seconds),
    click.option("--on-wedge", type=click.Choice([str(each) for each in OnWedge]), default=str(DEFAULT.on_wedge),
                 show_default=True, help="Restart a wedged vLLM, or report it only (not ready, metric, log)."),
    _seconds("--fallback-after-seconds", "Restart with the stock head when acceptance stays under the profile's floor for so "
             "long.  [default: never]", low=1),
    click.option("--log-format", type=click.Choice([str(form) for form in Form]), default=str(DEFAULT.log_format),
                 show_default=True, help="Form of all log lines, the launcher's and vLLM's."),
    click.option("--termination-log", type=click.Path(dir_okay=False, path_type=Path), metavar="FILE",
                 help="Where the reason of a failure is written.  [default: /dev/termination-log, if there is one]"),
    click.option("--api-key-file", type=click.Path(path_type=Path), metavar="FILE",
                 help="File with the key that API clients must send; or set VLLM_API_KEY or VLLM_API_KEY_FILE."),
]  # fmt: skip


def supervision(command: Any) -> Any:
    for option in reversed(SUPERVISION):
        command = option(command)
    return command
