"""Is vLLM warm? /health is 200 before the first token, and a server can die on its first request (a missing kernel, a cache
mode the model does not support). So a greedy and a sampled completion are made before anybody is told "ready": they compile
what a first request would wait for, in both samplers, and a draft head that was not final at load quantises itself."""

from __future__ import annotations

import logging
from enum import StrEnum
from typing import Any

import httpx

log = logging.getLogger("radiance")

#: the first completions may compile for minutes; the startup budget is the real limit
TIMEOUT_SECONDS = 600.0
REQUESTS: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0},
    "sampled": {"temperature": 0.8, "top_p": 0.95, "seed": 1},
}
#: 24 tokens at depth 7, all accepted, are still three drafts; a text that repeats itself, for drafters that look things up in
#: the prompt; ignore_eos, else a model may answer nothing
COMMON = {"prompt": "1, 2, 3, 4, 1, 2, 3, 4, 1, 2, 3,", "max_tokens": 24, "ignore_eos": True}


class Warmth(StrEnum):
    WARM = "warm"
    #: this server takes no completions (a pooling model, a key we do not have): there is no use in another try
    IMPOSSIBLE = "impossible"
    COLD = "cold"


def up(http: httpx.Client) -> tuple[Warmth, str]:
    """Both completions, and what went wrong if one did."""
    try:
        model = http.get("/v1/models").raise_for_status().json()["data"][0]["id"]
        for name, request in REQUESTS.items():
            answer = http.post("/v1/completions", json={"model": model, **COMMON, **request}, timeout=TIMEOUT_SECONDS)
            if not answer.raise_for_status().json()["choices"]:
                return Warmth.COLD, f"the {name} completion has no choices"
    except httpx.HTTPStatusError as error:
        text = f"vLLM answered {error.response.status_code} to {error.request.url.path}"
        return (Warmth.IMPOSSIBLE if error.response.status_code < 500 else Warmth.COLD), text
    except (httpx.HTTPError, LookupError, TypeError, ValueError) as error:
        return Warmth.COLD, repr(error)
    return Warmth.WARM, ""
