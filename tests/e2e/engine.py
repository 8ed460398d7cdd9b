"""What the scripts share that run a CPU vLLM in their own process, to look inside it: `python -m tests.e2e.NAME`."""

from __future__ import annotations

from typing import Any

#: before vLLM is imported
ENVIRONMENT = {"OMP_NUM_THREADS": "1", "VLLM_HOST_IP": "127.0.0.1", "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1"}
ONE_PROCESS = {**ENVIRONMENT, "VLLM_ENABLE_V1_MULTIPROCESSING": "0"}
#: arguments of vllm.LLM for a tiny checkpoint
SMALL = {
    "enforce_eager": True,
    "max_model_len": 512,
    "kv_cache_memory_bytes": 1 << 27,
    "max_num_seqs": 4,
    "enable_prefix_caching": False,
    "disable_log_stats": False,
}


def runner(llm: Any) -> Any:
    """The model runner of an engine that has its worker in this process."""
    return llm.llm_engine.engine_core.engine_core.model_executor.driver_worker.worker.model_runner


def generated(llm: Any, counted: list[tuple[int, int]]) -> dict[str, Any]:
    """Greedy answers to four prompts of token ids, and what became of their drafts. `counted`: counted_drafts()."""
    from vllm import SamplingParams, TokensPrompt

    counted.clear()
    prompts = [TokensPrompt(prompt_token_ids=[5 + i, 17, 99 + i]) for i in range(4)]
    sampling = SamplingParams(temperature=0, max_tokens=48, ignore_eos=True, detokenize=False)
    out = llm.generate(prompts, sampling, use_tqdm=False)
    drafted, accepted = map(sum, zip(*counted, strict=True))
    return {"tokens": [list(o.outputs[0].token_ids) for o in out], "accepted": accepted, "drafted": drafted}


def counted_drafts() -> list[tuple[int, int]]:
    """(drafted, accepted) tokens of every draft from now on, of all engines: vLLM's metrics are those of the last one made."""
    from vllm.v1.spec_decode.metrics import SpecDecodingStats

    counted: list[tuple[int, int]] = []
    observe = SpecDecodingStats.observe_draft

    def observe_draft(self: Any, num_draft_tokens: int, num_accepted_tokens: int, *more: Any, **also: Any) -> None:
        counted.append((num_draft_tokens, num_accepted_tokens))
        observe(self, num_draft_tokens, num_accepted_tokens, *more, **also)

    SpecDecodingStats.observe_draft = observe_draft
    return counted
