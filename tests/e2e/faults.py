"""Run as a script: what may happen to a loaded engine, one after the other in this process; prints what was seen.

FOLDER holds target/ and other/, the same model with other weights. Two engines live here: the second is loaded while the
first one serves.
"""

from __future__ import annotations

import gc
import json
import os
import sys
from typing import Any

from tests.e2e.engine import ONE_PROCESS, SMALL, counted_drafts, runner

SPECULATIVE = {"method": "mtp", "num_speculative_tokens": 3}
PROMPTS = ["def main():", "import os\n", "class Foo:", "for i in range("]


def engine(folder: str) -> Any:
    from vllm import LLM

    return LLM(model=folder, distributed_executor_backend="uni", speculative_config=SPECULATIVE, **SMALL)


def main(folder: str) -> None:
    from vllm import SamplingParams

    from radiance.hook import worker

    counted = counted_drafts()

    def serve(llm: Any) -> dict[str, Any]:
        """Tokens and accepted share of one generation, and what the plugin says of its heads."""
        counted.clear()
        out = llm.generate(PROMPTS, SamplingParams(temperature=0, max_tokens=48, ignore_eos=True), use_tqdm=False)
        drafted, accepted = map(sum, zip(*counted, strict=True))
        heads = []
        if worker.current is not None:
            worker.current.flush()
            heads = [{"state": h.state, "reason": h.reason, "repacked": h.repacked, "calls": h.calls}
                     for h in worker.current.snapshot.heads]  # fmt: skip
        problem = worker.current.snapshot.problem if worker.current else ""
        tokens = [list(o.outputs[0].token_ids) for o in out]
        return {"tokens": tokens, "accepted": accepted / drafted, "heads": heads, "problem": problem}

    seen: dict[str, Any] = {}
    first = engine(f"{folder}/target")
    seen["first"] = serve(first)
    if "--one" not in sys.argv:
        second = engine(f"{folder}/other")
        seen["second"] = serve(second)
        seen["first_again"] = serve(first)
        first.collective_rpc("reload_weights", kwargs={"weights_path": f"{folder}/other"})
        seen["reloaded"] = serve(first)
        inside = runner(first)
        inside.drafter.model.lm_head = inside.get_model().lm_head  # somebody puts another head in the place of ours
        inside.drafter.use_local_argmax_reduction = False
        gc.collect()
        seen["replaced"] = serve(first)
    print("SEEN " + json.dumps(seen), flush=True)
    os._exit(0)


if __name__ == "__main__":
    os.environ |= ONE_PROCESS
    main(sys.argv[1])
