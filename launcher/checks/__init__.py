"""The checks of `radiance doctor`: facts (surroundings.py) and a plan -> findings with a code, a verdict and a way out. Pure.

Codes stay what they are once given; scripts match them. A check that does not apply here says nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from launcher.checks import devices, software, storage
from launcher.checks.verdict import Findings, Verdict
from launcher.plan import ServePlan
from launcher.surroundings import Surroundings

__all__ = ["CHECKS", "Finding", "Verdict", "run"]


@dataclass(frozen=True)
class Finding:
    code: str
    name: str
    verdict: Verdict
    text: str
    fix: str = ""


Check = Callable[[Surroundings, ServePlan | None], Findings]


def run(around: Surroundings, plan: ServePlan | None) -> list[Finding]:
    """Every check; without a plan those that no profile decides."""
    return [
        Finding(code, name, said.verdict, said.text, said.fix)
        for code, (name, check) in CHECKS.items()
        for said in check(around, plan)
    ]


#: code -> name, check
CHECKS: dict[str, tuple[str, Check]] = {
    "R01": ("accelerators", devices.accelerators),
    "R02": ("driver", devices.driver),
    "R03": ("cuda", devices.cuda),
    "R04": ("memory", devices.memory),
    "R05": ("shm", storage.shared_memory),
    "R06": ("caches", storage.caches),
    "R07": ("disk", storage.disk),
    "R08": ("kfd", devices.kfd),
    "R09": ("compiler", software.compiler),
    "R10": ("triton", software.triton),
    "R11": ("plugin", software.plugin),
    "R12": ("vllm", software.vllm),
    "R13": ("seams", software.places),
    "R14": ("hub", storage.hub),
    "R15": ("environment", software.environment),
    "R16": ("clock", software.clock),
}
