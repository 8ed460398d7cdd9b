"""Run as a script: drafter families of the V1 runner, each served with the 2-bit head and then, in the same engine, with the
stock head put back. FOLDER is made by tests/bench/pairs.py (eagle) and holds a DFlash drafter made from the DFlash2 one.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

from tests.e2e.engine import ONE_PROCESS, SMALL, counted_drafts, runner

FAMILIES = {
    "eagle": {"method": "eagle", "model": "eagle/draft", "num_speculative_tokens": 3},
    "dflash": {"method": "dflash", "model": "dflash/draft", "num_speculative_tokens": 3},
    "draft_model": {"method": "draft_model", "model": "eagle/target", "num_speculative_tokens": 3},
}


def main(folder: str) -> None:
    from vllm import LLM, SamplingParams, TokensPrompt

    counted = counted_drafts()
    seen: dict[str, Any] = {}
    engines = []  # one that is collected takes vLLM's process groups along
    for family, speculative in FAMILIES.items():
        llm = LLM(
            f"{folder}/eagle/target",
            distributed_executor_backend="uni",
            skip_tokenizer_init=True,
            speculative_config={**speculative, "model": f"{folder}/{speculative['model']}"},
            **SMALL,
        )
        engines.append(llm)
        drafter = runner(llm).drafter
        ours = drafter.model.lm_head

        def serve(engine: Any) -> dict[str, Any]:
            counted.clear()
            prompts = [TokensPrompt(prompt_token_ids=[5 + i, 17, 99 + i]) for i in range(4)]
            sampling = SamplingParams(temperature=0, max_tokens=48, ignore_eos=True, detokenize=False)
            out = engine.generate(prompts, sampling, use_tqdm=False)
            drafted, accepted = map(sum, zip(*counted, strict=True))
            return {"tokens": [list(o.outputs[0].token_ids) for o in out], "accepted": accepted, "drafted": drafted}

        fast = serve(llm)
        ours.radiance.refresh()
        status = ours.radiance.status
        fast |= {
            "state": status.state,
            "calls": status.calls,
            "ids": drafter.use_local_argmax_reduction,
            "lazy": status.lazy_fired,
        }
        drafter.model.lm_head, drafter.use_local_argmax_reduction = ours.source, False
        seen[family] = {"fast": fast, "stock": serve(llm)}
    print("SEEN " + json.dumps(seen), flush=True)
    os._exit(0)


if __name__ == "__main__":
    os.environ |= {**ONE_PROCESS, "RADIANCE_FAST_DRAFT": "1"}
    main(sys.argv[1])
