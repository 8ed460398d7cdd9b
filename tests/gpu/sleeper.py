"""Run as a script on a GPU with vLLM: an engine that sleeps, wakes and reloads, under CUDA graphs; prints what was seen.

    python tests/gpu/sleeper.py FOLDER stock|fast

FOLDER is an EAGLE pair of tests/bench/pairs.py. Sleep level 1 keeps the weights on the host, level 2 throws them away; then
vLLM's reload_weights brings back the target's alone, so this script loads the drafter's own, as whoever sleeps so deep must.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
from typing import Any


def main(folder: str) -> None:
    import radiance

    radiance.register()
    import torch
    from safetensors.torch import load_file
    from vllm import LLM, SamplingParams, TokensPrompt

    from radiance.hook import worker

    llm = LLM(
        f"{folder}/target",
        max_model_len=1024,
        max_num_seqs=16,
        enable_prefix_caching=False,
        disable_log_stats=False,
        kv_cache_memory_bytes=1 << 30,
        gpu_memory_utilization=0.3,
        attention_backend="TRITON_ATTN",
        skip_tokenizer_init=True,
        enable_sleep_mode=True,
        compilation_config={"mode": 0, "cudagraph_mode": "FULL_DECODE_ONLY"},  # half the start, the same graphs
        speculative_config={"method": "eagle", "model": f"{folder}/draft", "num_speculative_tokens": 3},
    )

    def serve() -> dict[str, Any]:
        def count() -> list[int]:
            names = ("vllm:spec_decode_num_draft_tokens", "vllm:spec_decode_num_accepted_tokens")
            return [int(m.value) for name in names for m in llm.get_metrics() if m.name == name]

        before = count()
        prompts = [TokensPrompt(prompt_token_ids=[5 + i, 17, 99 + i]) for i in range(8)]
        sampling = SamplingParams(max_tokens=128, temperature=0, ignore_eos=True, detokenize=False)
        out = [list(o.outputs[0].token_ids) for o in llm.generate(prompts, sampling, use_tqdm=False)]
        drafted, accepted = (now - then for now, then in zip(count(), before, strict=True))
        torch.cuda.synchronize()
        seen = {"output": hashlib.sha256(json.dumps(out).encode()).hexdigest()[:16], "accepted": accepted / drafted}
        if worker.current is not None:
            worker.current.refresh()
            (head,) = worker.current.snapshot.heads
            seen |= {"state": head.state, "calls": head.calls, "repacked": head.repacked}
        return seen

    def load_drafter(worker: Any) -> None:
        worker.get_draft_model().load_weights(load_file(f"{folder}/draft/model.safetensors").items())

    seen = {"fresh": serve()}
    llm.sleep(level=1)
    llm.wake_up()
    seen["slept_1"] = serve()
    llm.sleep(level=2)
    llm.wake_up(tags=["weights"])
    llm.collective_rpc(load_drafter)  # first: reload_weights ends with a look at every head
    llm.collective_rpc("reload_weights")
    llm.wake_up(tags=["kv_cache"])
    seen["slept_2"] = serve()
    print("SEEN " + json.dumps(seen), flush=True)
    os._exit(0)


if __name__ == "__main__":
    os.environ |= {"RADIANCE_FAST_DRAFT": str(int(sys.argv[2] == "fast")), "VLLM_ENABLE_V1_MULTIPROCESSING": "0"}
    main(sys.argv[1])
