"""Draft heads side by side on real vLLM with CUDA graphs: tokens a second, output, acceptance. Needs a GPU.

    python tests/bench/serve.py FOLDER --json tests/bench/results/h200-serve.json
    python tests/bench/serve.py FOLDER --heads stock,fast --kv --json tests/bench/results/h200-kv.json

FOLDER holds target/ and draft/ (tests/bench/pairs.py). Every head has an engine of its own (tests/bench/serving.py); all are
started, then they generate the same in turns, one at a time: what else the host does then meets all of them alike. On a
shared host, engines measured one after the other differed by half with the same head. The figure is the median, and what
is quoted the median of each round's ratio to stock; `coarse` has none: its engine runs inside our process. With --kv they
run one after the other and vLLM sizes their KV caches: without torch.compile (as in matrix.sh), or after a run that has
compiled, since memory of a compilation is lost to the cache.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path
from statistics import median
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))
from tests.bench import serving

SEQUENCES = (1, 16)
ROUNDS = 15
#: prompts of the last generation, for the acceptance: at 16 two runs of the *same* head differ by half a point
PROMPTS = 256
#: each engine's, where they share a GPU
KV_BYTES = 2 << 30


class Engine:
    """A process of tests/bench/serving.py. `log` is all that it printed and was no answer."""

    def __init__(self, head: str, arguments: list[str], limit: float) -> None:
        command = [sys.executable, __file__, *arguments, "--head", head]
        self.head, self.limit, self.log = head, limit, ""
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                                        text=True, start_new_session=True)  # fmt: skip

    def answer(self) -> dict[str, Any]:
        """The next one. SystemExit, with the log's end, if it does not come within `limit` seconds."""
        assert self.process.stdout is not None
        watchdog = threading.Timer(self.limit, self.kill)
        watchdog.start()
        try:
            for line in self.process.stdout:
                if line.startswith(serving.MARK):
                    found: dict[str, Any] = json.loads(line.removeprefix(serving.MARK))
                    return found
                self.log += line
        finally:
            watchdog.cancel()
        raise SystemExit(
            f"{self.head}: no answer within {self.limit:.0f} s, exit {self.process.wait()}\n{self.log[-3500:]}"
        )

    def ask(self, command: str) -> dict[str, Any]:
        assert self.process.stdin is not None
        print(command, file=self.process.stdin, flush=True)
        return self.answer()

    def end(self) -> dict[str, Any]:
        found = self.ask("end")
        with suppress(subprocess.TimeoutExpired):  # what was measured is not lost to a slow exit
            self.process.wait(60)
        return found

    def kill(self) -> None:
        """With the engine's own processes: they hold the pipe and the GPU's memory."""
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)


def in_turns(engines: list[Engine], sequences: int, rounds: int, tokens: int) -> dict[str, dict[str, Any]]:
    """`rounds` times, each engine generates for `sequences` prompts, in an order that shifts; what each counted meanwhile."""
    before = {engine.head: engine.ask("counters") for engine in engines}
    seconds: dict[str, list[float]] = {engine.head: [] for engine in engines}
    outputs: dict[str, set[str]] = {engine.head: set() for engine in engines}
    for turn in range(rounds):
        shift = turn % len(engines)
        for engine in engines[shift:] + engines[:shift]:
            found = engine.ask(f"generate {sequences}")
            seconds[engine.head].append(found["seconds"])
            outputs[engine.head].add(found["output"])
    results = {}
    for engine in engines:
        after = engine.ask("counters")
        speeds = [round(tokens * sequences / second, 1) for second in seconds[engine.head]]
        results[engine.head] = {
            "tokens_per_second": round(median(speeds), 1),
            "rounds": speeds,
            "output": " ".join(sorted(outputs[engine.head])),  # more than one: it is not deterministic
            **{name: after[name] - before[engine.head].get(name, 0) for name in after},
        }
    return results


def measure(engines: list[Engine], chosen: argparse.Namespace) -> list[dict[str, Any]]:
    results = {engine.head: {"head": engine.head, **engine.answer()} for engine in engines}  # all start at once
    for engine in engines:
        engine.ask("generate 1")  # what a first call builds is no figure
    if not chosen.kv:
        for sequences in SEQUENCES:
            for head, found in in_turns(engines, sequences, chosen.rounds, chosen.tokens).items():
                results[head][f"sequences_{sequences}"] = found
        for head, found in in_turns(engines, chosen.prompts, 1, chosen.tokens).items():
            results[head][f"prompts_{chosen.prompts}"] = found
    for engine in engines:
        if chosen.profile:
            for sequences in SEQUENCES:
                results[engine.head][f"profile_{sequences}"] = engine.ask(f"profile {sequences}")
        results[engine.head] |= engine.end()
    return list(results.values())


def ratios(found: dict[str, Any], other: dict[str, Any]) -> tuple[float, float, float]:
    """Quartiles of the rounds' ratios of tokens a second, the median in the middle."""
    each = sorted(a / b for a, b in zip(found["rounds"], other["rounds"], strict=True))
    return each[len(each) // 4], median(each), each[-1 - len(each) // 4]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder")
    parser.add_argument("--head", help="be the process of one head")
    parser.add_argument("--heads", default=",".join(serving.HEADS), help="of them, and fast:R, with R candidates")
    parser.add_argument("--method", default="eagle")
    parser.add_argument("--drafts", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--tokens", type=int, default=128, help="of one answer")
    parser.add_argument("--prompts", type=int, default=PROMPTS)
    parser.add_argument("--options", type=json.loads, default={}, help="more arguments of vllm.LLM, as JSON")
    parser.add_argument("--profile", action="store_true", help="GPU kernels too; engines in our processes")
    parser.add_argument(
        "--kv", action="store_true", help="only starts, one after the other, for the size of the KV cache"
    )
    parser.add_argument("--limit", type=float, default=400, help="seconds for any one answer")
    parser.add_argument("--json", type=Path)
    chosen = parser.parse_args()
    heads = chosen.heads.split(",")
    if unknown := {head for head in heads if head not in serving.HEADS and not re.fullmatch("fast:[1-9][0-9]*", head)}:
        parser.error(f"there is no head {', '.join(unknown)}")
    share = {"gpu_memory_utilization": 0.5} if chosen.kv else {
        "gpu_memory_utilization": round(0.8 / len(heads), 2), "kv_cache_memory_bytes": KV_BYTES}  # fmt: skip
    chosen.options = share | chosen.options
    if chosen.head:
        serving.serve(chosen)
    arguments = sys.argv[1:]
    groups = [[head] for head in heads] if chosen.kv else [heads]
    results: list[dict[str, Any]] = []
    for group in groups:
        engines = [Engine(head, arguments, chosen.limit) for head in group]
        try:
            results += measure(engines, chosen)
        finally:
            for engine in engines:
                engine.kill()
                for line in engine.log.splitlines():
                    if "adiance" in line:
                        print("   ", line[:300], flush=True)
    stock = {one["head"]: one for one in results}.get("stock")
    for one in results:
        print(json.dumps(one), flush=True)
        timed = stock and not chosen.kv and one["head"] != "coarse"  # its engine runs in our process
        for sequences in SEQUENCES if stock and timed else ():
            low, middle, high = ratios(one[f"sequences_{sequences}"], stock[f"sequences_{sequences}"])
            print(f"{one['head']}, {sequences} sequences: {middle:.2f} x stock ({low:.2f}-{high:.2f})", flush=True)
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
