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

SPECULATIVE = {"method": "mtp", "num_speculative_tokens": 3}
PROMPTS = ["def main():", "import os\n", "class Foo:", "for i in range("]


def engine(folder: str) -> Any:
    from vllm import LLM

    return LLM(
        model=folder,
        enforce_eager=True,
        max_model_len=512,
        kv_cache_memory_bytes=1 << 27,
        max_num_seqs=4,
        enable_prefix_caching=False,
        distributed_executor_backend="uni",
        disable_log_stats=False,
        speculative_config=SPECULATIVE,
    )


def main(folder: str) -> None:
    from vllm import SamplingParams
    from vllm.v1.spec_decode.metrics import SpecDecodingStats

    from radiance.hook import worker

    counted: list[tuple[int, int]] = []  # vLLM's metrics belong to the engine that was made last
    observe = SpecDecodingStats.observe_draft

    def observe_draft(self: Any, num_draft_tokens: int, num_accepted_tokens: int, *more: Any, **also: Any) -> None:
        counted.append((num_draft_tokens, num_accepted_tokens))
        observe(self, num_draft_tokens, num_accepted_tokens, *more, **also)

    SpecDecodingStats.observe_draft = observe_draft

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
        runner = first.llm_engine.engine_core.engine_core.model_executor.driver_worker.worker.model_runner
        runner.drafter.model.lm_head = runner.get_model().lm_head  # somebody puts another head in the place of ours
        runner.drafter.use_local_argmax_reduction = False
        gc.collect()
        seen["replaced"] = serve(first)
    print("SEEN " + json.dumps(seen), flush=True)
    os._exit(0)


if __name__ == "__main__":
    os.environ |= {
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "OMP_NUM_THREADS": "1",
        "VLLM_HOST_IP": "127.0.0.1",
        "HF_HUB_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
    }
    main(sys.argv[1])
