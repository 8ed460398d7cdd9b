"""Draft heads side by side on real vLLM with CUDA graphs: output, acceptance, tokens a second, KV cache. Needs a GPU.

    python tests/bench/serve.py FOLDER --json tests/bench/results/h200-serve.json

FOLDER holds target/ and draft/ (tests/bench/pairs.py). Each head runs in a process of its own, the same prompts: none (no
speculation), stock, fast (2-bit with rerank), coarse (2-bit without it), fp8 (vLLM's own draft_lm_head_quantization). The
engine has its own process, as under `vllm serve`, unless --profile wants to look at its kernels or `coarse` patches it.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

HEADS = ("none", "stock", "fast", "coarse", "fp8")
TOKENS = 128
REPEATS = 5
SEQUENCES = (1, 16)
#: prompts of the last run, for the acceptance: at 16 prompts two runs of the *same* head differ by half a point
PROMPTS = 256


def run(chosen: argparse.Namespace) -> None:
    """One head in this process; prints one line of JSON."""
    head, folder, profile = chosen.head, chosen.folder, chosen.profile
    os.environ |= {
        "RADIANCE_FAST_DRAFT": "1" if head in ("fast", "coarse") else "0",
        "RADIANCE_STATE_DIR": tempfile.mkdtemp(),
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0" if profile or head == "coarse" else "1",
        "VLLM_ALLOW_INSECURE_SERIALIZATION": "1",  # kv_bytes() travels to the engine
    }
    import radiance

    radiance.register()
    if head == "coarse":
        without_rerank()
    from vllm import LLM, SamplingParams, TokensPrompt

    kwargs: dict[str, Any] = {
        "max_model_len": 2048,
        "max_num_seqs": 16,
        "enable_prefix_caching": False,
        "disable_log_stats": False,
        "gpu_memory_utilization": 0.5,
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
    begin = time.monotonic()
    llm = LLM(f"{folder}/target", **kwargs)
    found: dict[str, Any] = {"head": head, "start_seconds": round(time.monotonic() - begin, 1)}
    found["kv_blocks"] = llm.llm_engine.vllm_config.cache_config.num_gpu_blocks
    found["kv_mib"] = round(min(llm.collective_rpc(kv_bytes)) / 2**20, 1)
    sampling = SamplingParams(max_tokens=TOKENS, temperature=0, ignore_eos=True, detokenize=False)
    before = counters(llm)
    for sequences, repeats in (*((few, REPEATS) for few in SEQUENCES), (chosen.prompts, 1)):
        prompts = [TokensPrompt(prompt_token_ids=[5 + i, 17, 99 + i]) for i in range(sequences)]
        times = []
        for _ in range(repeats):
            start = time.perf_counter()
            answers = llm.generate(prompts, sampling, use_tqdm=False)
            times.append(time.perf_counter() - start)
        text = json.dumps([list(answer.outputs[0].token_ids) for answer in answers])
        after = counters(llm)
        found[f"prompts_{sequences}" if repeats == 1 else f"sequences_{sequences}"] = {
            "tokens_per_second": round(TOKENS * sequences / min(times), 1),
            "output": hashlib.sha256(text.encode()).hexdigest()[:16],
            **{name: after[name] - before[name] for name in after},
        }
        before = after
    if profile:
        found["profile"] = profiled(lambda: llm.generate(prompts[:1], sampling, use_tqdm=False))
    found["draft_head"] = draft_head()
    if head in ("fast", "coarse") and not any(one["state"] == "active" for one in found["draft_head"]):
        raise SystemExit(
            f"{head}: no draft head is active, this would have measured the stock head: {found['draft_head']}"
        )
    print("RESULT " + json.dumps(found), flush=True)
    llm.llm_engine.engine_core.shutdown()  # the next head wants the memory
    os._exit(0)


def counters(llm: Any) -> dict[str, float]:
    """vLLM's of drafts, and those of the draft heads, ranks added up."""
    names = {"vllm:spec_decode_num_drafts": "drafts", "vllm:spec_decode_num_draft_tokens": "draft_tokens",
             "vllm:spec_decode_num_accepted_tokens": "accepted_tokens"}  # fmt: skip
    found: dict[str, float] = {names[m.name]: int(m.value) for m in llm.get_metrics() if m.name in names}
    for head in draft_head():
        for name in ("calls", "rows", "latency_us"):
            found[f"head_{name}"] = found.get(f"head_{name}", 0) + head[name]
    return found


def kv_bytes(worker: Any) -> int:
    """Bytes of one rank's KV cache; runs in the engine."""
    return sum(tensor.size for tensor in worker.model_runner.kv_cache_config.kv_cache_tensors)


def profiled(generate: Callable[[], Any]) -> dict[str, Any]:
    """GPU kernels of one generation of one sequence: the busy share of the wall time, and the 12 that take most of it."""
    import torch

    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as trace:
        begin = time.perf_counter()
        generate()
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


def draft_head() -> list[dict[str, Any]]:
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder")
    parser.add_argument("--head", choices=HEADS, help="run one head in this process")
    parser.add_argument("--heads", default=",".join(HEADS))
    parser.add_argument("--method", default="eagle")
    parser.add_argument("--drafts", type=int, default=3)
    parser.add_argument("--prompts", type=int, default=PROMPTS)
    parser.add_argument("--options", type=json.loads, default={}, help="more arguments of vllm.LLM, as JSON")
    parser.add_argument("--profile", action="store_true", help="GPU kernels of one sequence, after the timed runs")
    parser.add_argument("--limit", type=int, default=150, help="seconds for each head")
    parser.add_argument("--json", type=Path)
    chosen = parser.parse_args()
    if chosen.head:
        run(chosen)
    results = []
    for head in chosen.heads.split(","):
        command = [sys.executable, __file__, *sys.argv[1:], "--head", head]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=chosen.limit)
            output = done.stdout + done.stderr
        except subprocess.TimeoutExpired as late:
            output = f"{late.stdout or b''!r} {late.stderr or b''!r} timed out"
        lines = [line for line in output.splitlines() if line.startswith("RESULT ")]
        if lines:
            results.append(json.loads(lines[0].removeprefix("RESULT ")))
            print(json.dumps(results[-1]), flush=True)
        else:
            print(f"{head} failed:\n{output[-3500:]}", flush=True)
        for line in output.splitlines():
            if "adiance" in line and "RESULT" not in line:
                print("   ", line[:300], flush=True)
    if chosen.json:
        import torch
        import vllm

        from radiance import provenance

        where = torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu"
        report = {"device": where, "torch": torch.__version__, "vllm": vllm.__version__, "commit": provenance.commit(),
                  "command": " ".join([Path(sys.executable).name, *sys.argv]), "method": chosen.method, "heads": results}  # fmt: skip
        chosen.json.write_text(json.dumps(report, indent=1))


if __name__ == "__main__":
    main()
