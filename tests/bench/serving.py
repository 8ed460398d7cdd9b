"""One draft head on a real vLLM, for tests/bench/serve.py: reads commands from stdin, answers with lines of JSON.

    generate N     N prompts, some tokens each, greedy: seconds, hash of all token ids
    counters       what vLLM counts of drafts and what the draft heads count, ranks added up
    profile N      GPU kernels of one generation for N prompts
    end            the draft heads as they are; then it exits

The engine has its own process, as under `vllm serve`, unless --profile looks at its kernels or `coarse` patches it.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

#: none: no speculation; fast: 2-bit with rerank (fast:R: of R candidates); coarse: without; fp8: vLLM's own
#: draft_lm_head_quantization
HEADS = ("none", "stock", "fast", "coarse", "fp8")
#: what answers begin with; vLLM logs to the same stream
MARK = "RESULT "


def start(chosen: argparse.Namespace) -> Any:
    (head, _, rerank), folder = chosen.head.partition(":"), chosen.folder
    os.environ |= {
        "RADIANCE_FAST_DRAFT": "1" if head in ("fast", "coarse") else "0",
        **({"RADIANCE_DRAFT_RERANK": rerank} if rerank else {}),
        "RADIANCE_STATE_DIR": tempfile.mkdtemp(),
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0" if chosen.profile or head == "coarse" else "1",
        "VLLM_ALLOW_INSECURE_SERIALIZATION": "1",  # kv_bytes() travels to the engine
    }
    import radiance

    radiance.register()
    if head == "coarse":
        without_rerank()
    from vllm import LLM

    kwargs: dict[str, Any] = {
        "max_model_len": 2048,
        "max_num_seqs": 16,
        "enable_prefix_caching": False,
        "disable_log_stats": False,
        "attention_backend": "TRITON_ATTN",
        "skip_tokenizer_init": True,
        **chosen.options,
    }
    if head != "none":
        spec: dict[str, Any] = {"method": chosen.method, "num_speculative_tokens": chosen.drafts}
        if (Path(folder) / "draft").exists():
            spec["model"] = f"{folder}/draft"
        if head == "fp8":
            spec["draft_lm_head_quantization"] = "fp8"
        kwargs["speculative_config"] = spec
    return LLM(f"{folder}/target", **kwargs)


def generate(llm: Any, sequences: int, tokens: int) -> dict[str, Any]:
    from vllm import SamplingParams, TokensPrompt

    sampling = SamplingParams(max_tokens=tokens, temperature=0, ignore_eos=True, detokenize=False)
    prompts = [TokensPrompt(prompt_token_ids=[5 + i, 17, 99 + i]) for i in range(sequences)]
    begin = time.perf_counter()
    answers = llm.generate(prompts, sampling, use_tqdm=False)
    seconds = time.perf_counter() - begin
    text = json.dumps([list(answer.outputs[0].token_ids) for answer in answers])
    return {"seconds": seconds, "output": hashlib.sha256(text.encode()).hexdigest()[:16]}


def counters(llm: Any) -> dict[str, float]:
    names = {"vllm:spec_decode_num_drafts": "drafts", "vllm:spec_decode_num_draft_tokens": "draft_tokens",
             "vllm:spec_decode_num_accepted_tokens": "accepted_tokens"}  # fmt: skip
    found: dict[str, float] = {names[m.name]: int(m.value) for m in llm.get_metrics() if m.name in names}
    for head in draft_heads():
        for name in ("calls", "rows", "latency_us"):
            found[f"head_{name}"] = found.get(f"head_{name}", 0) + head[name]
    return found


def draft_heads() -> list[dict[str, Any]]:
    """What the plugin says of its heads on every rank, counters included, through the state files."""
    from radiance import status

    if os.environ["RADIANCE_FAST_DRAFT"] == "0":
        return []
    time.sleep(1.5)  # they are written once a second
    snapshots = status.read_all(Path(os.environ["RADIANCE_STATE_DIR"]))[0]
    keep = ("name", "drafter", "state", "reason", "n", "k", "rerank", "packed_bytes", "peak_bytes", "quantise_seconds",
            "calls", "rows", "rescued_rows", "stock_calls")  # fmt: skip
    return [{name: getattr(head, name) for name in keep} | {"rank": snapshot.rank, "latency_us": head.latency.sum_seconds * 1e6}
            for snapshot in snapshots for head in snapshot.heads]  # fmt: skip


def kv_bytes(worker: Any) -> int | None:
    """What one rank has left for its KV cache; runs in the engine. None if its size is an option, or on a CPU."""
    return getattr(worker, "available_kv_cache_memory_bytes", None)


def profiled(llm: Any, sequences: int, tokens: int) -> dict[str, Any]:
    """GPU kernels of one generation: the busy share of the wall time, and the 12 that take most of it."""
    import torch

    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as trace:
        begin = time.perf_counter()
        generate(llm, sequences, tokens)
        torch.cuda.synchronize()
        wall = time.perf_counter() - begin
    kernels = sorted((e for e in trace.key_averages() if e.device_time_total), key=lambda e: -e.device_time_total)
    return {
        "wall_us": round(wall * 1e6),
        "busy_us": round(sum(e.device_time_total for e in kernels)),
        "kernels": [{"name": e.key[:90], "calls": e.count, "us": round(e.device_time_total)} for e in kernels[:12]],
    }


def without_rerank() -> None:
    """The answer of the best coarse row: what two bits alone would be worth."""
    from radiance import shortlist

    def top_tokens(packed: Any, rotation: Any, source: Any, x: Any, r: int, n_valid: int, **_: Any) -> Any:
        ids = shortlist.shortlist(packed, rotation, x, r, n_valid)[0]
        return ids[:, 0].long(), x.new_zeros(x.shape[0])

    shortlist.top_tokens = top_tokens


def answer(found: dict[str, Any]) -> None:
    print("\n" + MARK + json.dumps(found), flush=True)  # an engine of its own process may have left half a line


def serve(chosen: argparse.Namespace) -> None:
    """Obey stdin until `end`."""
    begin = time.monotonic()
    llm = start(chosen)
    heads = draft_heads()
    if chosen.head.startswith(("fast", "coarse")) and not any(one["state"] == "active" for one in heads):
        raise SystemExit(f"{chosen.head}: no draft head is active, this would measure the stock head: {heads}")
    ranks = [size / 2**20 for size in llm.collective_rpc(kv_bytes) if size is not None]
    answer({"start_seconds": round(time.monotonic() - begin, 1), "kv_mib": round(min(ranks), 1) if ranks else None})
    for line in sys.stdin:
        command, *rest = line.split()
        if command == "generate":
            answer(generate(llm, int(rest[0]), chosen.tokens))
        elif command == "counters":
            answer(counters(llm))
        elif command == "profile":
            answer(profiled(llm, int(rest[0]), chosen.tokens))
        elif command == "end":
            break
    answer({"draft_head": draft_heads()})
    llm.llm_engine.engine_core.shutdown()
    os._exit(0)
