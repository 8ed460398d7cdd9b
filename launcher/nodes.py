"""One model over several nodes: what the arguments of vLLM say of it.

Node 0, the leader, has the API. The others run `vllm serve --headless`, and their launchers ask that of the leader (leader.py).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from ipaddress import ip_address

from launcher import arguments
from launcher.errors import UsageProblem

#: of vLLM; it takes the beginning of a name for the whole, we do not
OPTIONS = ("headless", "nnodes", "node-rank", "master-addr", "data-parallel-address")
HOST = re.compile(r"[\w.-]+")


@dataclass(frozen=True)
class Nodes:
    """`address`: where the leader is, None if nothing says so."""

    count: int
    headless: bool
    address: str | None


def read(argv: Sequence[str]) -> Nodes:
    """From all arguments after `vllm serve`. Raises UsageProblem for what cannot be."""
    given = arguments.values(argv)
    for name in OPTIONS:
        if short := [found for found in given if len(found) > 3 and name.startswith(found) and found not in OPTIONS]:
            raise UsageProblem(f"--{short[0]} is short for --{name}; write it out, the launcher has to know it")
    count, rank = (_number(given, "nnodes", 1), _number(given, "node-rank", 0))
    headless, address = "headless" in given, given.get("master-addr") or given.get("data-parallel-address")
    if count > 1 and headless != (rank > 0):
        raise UsageProblem(
            f"--node-rank {rank} of --nnodes {count} {'with' if headless else 'without'} --headless: node 0 has the API, all others "
            "are headless"
        )
    if address and not _is_host(address):
        raise UsageProblem(
            f"{address!r} is no address of a node; give a host or an IP address, without a port and brackets"
        )
    return Nodes(count, headless, address)


def _is_host(text: str) -> bool:
    try:
        return bool(HOST.fullmatch(text)) or ip_address(text).version == 6
    except ValueError:
        return False


def _number(given: dict[str, str], name: str, least: int) -> int:
    text = given.get(name) or str(least)
    if not text.isdecimal() or int(text) < least:
        raise UsageProblem(f"--{name} {text!r}: give a number, {least} or more")
    return int(text)


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
