"""Run as a script: drafter families of the V1 runner, each served with the 2-bit head and then, in the same engine, with the
stock head put back. FOLDER is made by tests/bench/pairs.py.

    python -m tests.e2e.families FOLDER FAMILY[,FAMILY...]
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

from tests.e2e.engine import ONE_PROCESS, SMALL, counted_drafts, generated, runner

#: family -> target, drafter (none: the target holds it), method
FAMILIES = {
    "eagle": ("eagle/target", "eagle/draft", "eagle"),
    "eagle3": ("eagle/target", "eagle3/draft", "eagle3"),
    "dflash": ("eagle/target", "dflash/draft", "dflash"),
    "draft_model": ("eagle/target", "eagle/target", "draft_model"),
    "mimo": ("mimo/target", None, "mtp"),
    "glm4_moe": ("glm4_moe/target", None, "mtp"),
    "deepseek": ("deepseek/target", None, "mtp"),
    "qwen3_next": ("qwen3_next/target", None, "mtp"),
}


def main(folder: str, families: list[str]) -> None:
    from vllm import LLM

    from radiance.hook.module import RadianceLMHead

    counted = counted_drafts()
    seen: dict[str, Any] = {}
    engines = []  # one that is collected takes vLLM's process groups along
    for family in families:
        target, draft, method = FAMILIES[family]
        speculative: dict[str, Any] = {"method": method, "num_speculative_tokens": 3}
        if draft is not None:
            speculative["model"] = f"{folder}/{draft}"
        llm = LLM(
            f"{folder}/{target}",
            distributed_executor_backend="uni",
            skip_tokenizer_init=True,
            speculative_config=speculative,
            **SMALL,
        )
        engines.append(llm)
        drafter = runner(llm).drafter
        places = [(parent, name, child) for parent in drafter.model.modules() for name, child in parent.named_children()
                  if isinstance(child, RadianceLMHead)]  # fmt: skip
        (ours,) = {child for _, _, child in places}
        fast = generated(llm, counted)
        ours.radiance.refresh()
        status = ours.radiance.status
        fast |= {
            "state": status.state,
            "calls": status.calls,
            "ids": drafter.use_local_argmax_reduction,
            "lazy": status.lazy_fired,
            "stock_calls": sum(status.stock_calls.values()),
            "drafter": status.drafter,
            "head": status.name,
        }
        for parent, name, child in places:
            setattr(parent, name, child.source)
        drafter.use_local_argmax_reduction = False
        seen[family] = {"fast": fast, "stock": generated(llm, counted)}
    print("SEEN " + json.dumps(seen), flush=True)
    os._exit(0)


if __name__ == "__main__":
    os.environ |= {**ONE_PROCESS, "RADIANCE_FAST_DRAFT": "1"}
    main(sys.argv[1], sys.argv[2].split(","))
