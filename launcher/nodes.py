"""One model over several nodes: what the arguments of vLLM say of it.

Node 0, the leader, has the API. The others run `vllm serve --headless`, and their launchers ask that of the leader (leader.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from launcher import arguments
from launcher.errors import UsageProblem


@dataclass(frozen=True)
class Nodes:
    """`address`: where the leader is, None if nothing says so."""

    count: int
    headless: bool
    address: str | None


def read(argv: Sequence[str]) -> Nodes:
    """From all arguments after `vllm serve`. Raises UsageProblem for a number of nodes that is none."""
    given = arguments.values(argv)
    count = given.get("nnodes") or "1"
    if not count.isdecimal() or int(count) < 1:
        raise UsageProblem(f"--nnodes {count!r} is no number of nodes; give 1 or more")
    return Nodes(int(count), "headless" in given, given.get("master-addr") or given.get("data-parallel-address"))


def leader(found: Nodes, metrics_port: int) -> str | None:
    """Where the leader's launcher is, on a headless node; None on a node that has an API."""
    if not found.headless:
        return None
    if not found.address:
        raise UsageProblem(
            "--headless without --master-addr: name the node that has the API, this one follows its launcher"
        )
    if not metrics_port:
        raise UsageProblem(
            "--headless with --metrics-port 0: the leader's launcher is asked at the same port; give both nodes one"
        )
    host = f"[{found.address}]" if ":" in found.address else found.address
    return f"http://{host}:{metrics_port}"
