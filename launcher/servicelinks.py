"""Variables that Kubernetes makes of Services, and that vLLM or torch would take for settings.

A Service called "vllm" puts VLLM_PORT=tcp://10.0.0.7:8000 into every pod of its namespace; vLLM reads VLLM_PORT as a number
and dies. Such variables are named and kept from vLLM. Ours are not affected: no setting of Radiance has such a name.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

_URI = re.compile(r"^(tcp|udp|sctp)://")
#: what is made of a Service whose name begins like this could be read by vLLM
_VLLM = re.compile(
    r"^VLLM(_[A-Z0-9_]+)?_(SERVICE_(HOST|PORT(_[A-Z0-9_]+)?)|PORT_\d+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)$"
)
#: the API server's own link is in every pod, and clients look for its neighbours
_KEPT = ("KUBERNETES_",)
CURE = "set enableServiceLinks: false"


def found(environ: Mapping[str, str]) -> tuple[str, ...]:
    """Names to keep from vLLM: any *_PORT or VLLM_* that holds an address with a scheme, and vLLM's other link names."""
    return tuple(sorted(name for name, value in environ.items() if _polluted(name, value)))


def _polluted(name: str, value: str) -> bool:
    if name.startswith((*_KEPT, "RADIANCE_")):
        return False
    by_value = _URI.match(value) is not None and (name.endswith("_PORT") or name.startswith("VLLM_"))
    return by_value or _VLLM.match(name) is not None
