"""Does speculative decoding at temperature 1 leave the next-token distribution as it is? Two-sample chi-square tests.

    python tests/bench/distribution.py TARGET --method eagle --draft FOLDER --json F

(pairs.py --kinds eagle --hidden 1024 --vocab 512 --head-scale 0.2 makes a pair that temperature 1 does not make greedy: about half
of the probability lies on one token, the rest on all others alike.)
NOTE: on a GPU only. On a CPU, vLLM 0.32 rejects drafts wrongly at temperature 1 with its own head too: with sampled drafts
half of all tokens come out as token 0.

Draws the same number of continuations of one prompt without speculation, with the stock draft head and with the 2-bit one
(drafts sampled too, or --drafts greedy: the proposal is then one token for sure), and compares the tokens at each position
after the first, which no
draft decides. `cooler` is without speculation at temperature 0.9: the test must see that difference, or it sees none.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import torch

RUNS = ("none", "stock", "fast", "cooler")
TOKENS = 4
REST = 8


def sample(
    run: str, target: str, method: str, draft: str, drafts: str, count: int, options: dict[str, Any]
) -> dict[str, Any]:
    """Tokens at positions 1 .. TOKENS - 1 of `count` continuations, counted, and what became of the drafts."""
    # One process: the head's counters are looked at here, and an engine of its own would outlive this with the pipe open.
    os.environ |= {"RADIANCE_FAST_DRAFT": "1" if run == "fast" else "0", "VLLM_ENABLE_V1_MULTIPROCESSING": "0"}
    import radiance

    radiance.register()
    from vllm import LLM, SamplingParams, TokensPrompt

    kwargs: dict[str, Any] = {
        "max_model_len": 256,
        "max_num_seqs": 32,
        "enable_prefix_caching": False,
        "seed": RUNS.index(run),  # its own: with one seed the runs draw the same noise, and their samples hardly differ
        "disable_log_stats": False,
        "skip_tokenizer_init": True,
        "gpu_memory_utilization": 0.2,
        **options,
    }
    if run in ("stock", "fast"):
        kwargs["speculative_config"] = {"method": method, "num_speculative_tokens": TOKENS - 1,
                                        "draft_sample_method": drafts, **({"model": draft} if draft else {})}  # fmt: skip
    llm = LLM(target, **kwargs)
    sampling = SamplingParams(
        max_tokens=TOKENS, temperature=0.9 if run == "cooler" else 1.0, ignore_eos=True, detokenize=False
    )
    prompts = [TokensPrompt(prompt_token_ids=[5, 17, 99])] * count
    outputs = [o.outputs[0].token_ids for o in llm.generate(prompts, sampling, use_tqdm=False)]
    seen = {m.name.removeprefix("vllm:spec_decode_num_"): int(m.value) for m in llm.get_metrics()
            if m.name in ("vllm:spec_decode_num_draft_tokens", "vllm:spec_decode_num_accepted_tokens")}  # fmt: skip
    positions = [Counter(tokens[i] for tokens in outputs).most_common() for i in range(1, TOKENS)]
    worker = sys.modules.get("radiance.hook.worker")
    calls = 0
    if worker is not None and worker.current is not None:
        worker.current.refresh()
        calls = sum(head.calls for head in worker.current.snapshot.heads)
    return {"run": run, "count": count, "positions": positions, "draft_head_calls": calls, **seen}


def chi_square(one: list[list[int]], other: list[list[int]]) -> tuple[float, int, float]:
    """(statistic, degrees of freedom, p) of two samples of token counts; tokens seen fewer than 20 times share REST bins."""
    a, b = Counter(dict(map(tuple, one))), Counter(dict(map(tuple, other)))
    bins: dict[int, list[int]] = {}
    for token in a.keys() | b.keys():
        slot = bins.setdefault(token if a[token] + b[token] >= 20 else -1 - token % REST, [0, 0])
        slot[0], slot[1] = slot[0] + a[token], slot[1] + b[token]
    total_a, total_b = sum(a.values()), sum(b.values())
    statistic = 0.0
    for x, y in bins.values():
        for seen, share in ((x, total_a), (y, total_b)):
            expected = (x + y) * share / (total_a + total_b)
            statistic += (seen - expected) ** 2 / expected
    freedom = len(bins) - 1
    tail = torch.special.gammaincc(
        torch.tensor(freedom / 2, dtype=torch.float64), torch.tensor(statistic / 2, dtype=torch.float64)
    )
    return statistic, freedom, float(tail)


def compare(results: dict[str, dict[str, Any]]) -> dict[str, list[dict[str, float]]]:
    """Each run against `none`, position by position."""
    found = {}
    for run in results.keys() - {"none"}:
        tests = [chi_square(x, y) for x, y in zip(results["none"]["positions"], results[run]["positions"], strict=True)]
        found[run] = [{"chi_square": round(s, 1), "freedom": f, "p": p} for s, f, p in tests]
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("target")
    parser.add_argument("--method", default="mtp")
    parser.add_argument("--draft", default="")
    parser.add_argument("--drafts", choices=("probabilistic", "greedy"), default="probabilistic")
    parser.add_argument("--count", type=int, default=16384)
    parser.add_argument("--options", type=json.loads, default={}, help="more arguments of vllm.LLM, as JSON")
    parser.add_argument("--run", choices=RUNS, help="one run in this process")
    parser.add_argument("--parallel", type=int, default=1, help="runs at a time")
    parser.add_argument("--json", type=Path)
    chosen = parser.parse_args()
    if chosen.run:
        found = sample(
            chosen.run, chosen.target, chosen.method, chosen.draft, chosen.drafts, chosen.count, chosen.options
        )
        print("RESULT " + json.dumps(found), flush=True)
        os._exit(0)
    results: dict[str, dict[str, Any]] = {}
    waiting = list(RUNS)
    while waiting:
        now, waiting = waiting[: chosen.parallel], waiting[chosen.parallel :]
        started = {run: subprocess.Popen([sys.executable, __file__, *sys.argv[1:], "--run", run], text=True,
                                         stdout=subprocess.PIPE, stderr=subprocess.STDOUT) for run in now}  # fmt: skip
        for run, process in started.items():
            output, _ = process.communicate()
            lines = [line for line in output.splitlines() if line.startswith("RESULT ")]
            if not lines:
                raise SystemExit(f"{run} failed:\n{output[-4000:]}")
            results[run] = json.loads(lines[0].removeprefix("RESULT "))
    report = {"against_none": compare(results)}
    for run, found in results.items():
        report[run] = {name: value for name, value in found.items() if name not in ("run", "positions")}
    report["none"]["distinct_tokens"] = [len(position) for position in results["none"]["positions"]]
    print(json.dumps(report), flush=True)
    if chosen.json:
        import vllm

        from radiance import provenance

        where = torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu"
        head = {"device": where, "torch": torch.__version__, "vllm": vllm.__version__, "commit": provenance.commit(),
                "command": " ".join([Path(sys.executable).name, *sys.argv])}  # fmt: skip
        chosen.json.write_text(json.dumps(head | report, indent=1))


if __name__ == "__main__":
    main()
