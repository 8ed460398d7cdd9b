"""`radiance bench head [--json FILE]`: microseconds of the draft head on the GPU at hand, beside the stock head.

How it is timed: measure.py. x is drawn fresh. The stock head is F.linear + argmax in the same run. The read bandwidth is
that of a kernel that only reads (kernels/read.cu), over a buffer of 1 GiB. The whole path counts itself as a served one does;
"uncounted" is without, "device clock" the mean that its own counters tell.
"""

from __future__ import annotations

import argparse
import json
import shlex
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch

from radiance import coarse, ledger, measure, provenance, rerank, rivals, rotation, shortlist
from radiance.settings import DEFAULT_RERANK

ROWS = (1, 2, 4, 8, 16, 32, 64, 128)
#: draft rows at which rivals that compile a kernel for each are timed
RIVAL_ROWS = (1, 16, 64)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="radiance bench", description=__doc__)
    verbs = parser.add_subparsers(dest="verb", required=True)
    head = verbs.add_parser("head", help="coarse, select, rerank and the whole path, against the stock head")
    head.add_argument("--json", type=Path, help="write the results here")
    head.add_argument(
        "--shape", action="append", type=measure.shape, help="n x k, such as 124160x5120; may be repeated"
    )
    head.add_argument("--rows", type=lambda text: [int(m) for m in text.split(",")], help="draft rows, such as 1,8,64")
    head.add_argument(
        "--rerank", type=int, default=DEFAULT_RERANK, metavar="R", help=f"candidates a draft row [{DEFAULT_RERANK}]"
    )
    head.add_argument("--no-triton", action="store_true", help="leave the portable path out")
    head.add_argument("--no-cuda", action="store_true", help="leave the CUDA kernels out")
    head.add_argument("--no-rivals", action="store_true", help="leave fp8 and, where installed, humming out")
    args = parser.parse_args(argv)
    if not torch.cuda.is_available():
        print("radiance bench needs a GPU; this torch sees none", file=sys.stderr)
        return 69
    results = describe(["radiance", "bench", *(sys.argv[1:] if argv is None else argv)]) | {"rerank": args.rerank}
    for n, k in args.shape or measure.SHAPES:
        bench_head(
            n,
            k,
            args.rows or ROWS,
            args.rerank,
            results,
            cuda=not args.no_cuda,
            portable=not args.no_triton,
            others=not args.no_rivals,
        )
        torch.cuda.empty_cache()
        if args.json:
            args.json.write_text(json.dumps(results, indent=1) + "\n")
    return 0


def describe(command: Sequence[str]) -> dict[str, Any]:
    """Where and how the numbers were made; `rows` is filled by bench_head."""
    import triton

    where = torch.device("cuda", torch.cuda.current_device())
    return {
        "device": torch.cuda.get_device_name(where),
        "torch": torch.__version__,
        "triton": triton.__version__,
        "commit": provenance.commit(),
        "command": shlex.join(command),
        "read_bandwidth": round(measure.read_bandwidth(where)),
        "rows": [],
    }


def bench_head(
    n: int, k: int, rows: Sequence[int], r: int, results: dict[str, Any], *, cuda: bool, portable: bool, others: bool
) -> None:
    """All paths of one head, r candidates a row; prints a line a measurement and appends it to results["rows"]."""
    where = torch.device("cuda", torch.cuda.current_device())
    rot = rotation.to(rotation.make(k), where)
    sources = measure.sources(n, k, where)
    layouts = ["fragment"] if cuda and rerank.has_cuda_kernels(where) else []
    heads = {layout: measure.heads(n, k, layout, where) for layout in [*layouts, *(["quarter"] if portable else [])]}
    low = {bits: rivals.humming(bits, sources[0], torch.bfloat16) for bits in (4, 2)} if others else {}
    for m in rows:
        xs = [torch.randn(m, k, device=where).to(torch.bfloat16) for _ in range(8)]
        stock = measure.timed([partial(measure.stock_head, source, x) for source, x in measure.pairs(sources, xs)])
        note = _Recorder(results, m, n, k, stock)
        note("stock", "whole", stock)
        for layout, packs in heads.items():
            path = "cuda" if layout == "fragment" else "triton"
            pairs = measure.pairs(packs, xs)
            scratches = [coarse.coarse(p, rot, x) for p, x in pairs[:8]]
            ids = [shortlist.select(scratch, r, n) for scratch in scratches]
            _whole(note, path, packs, rot, sources, xs, r)
            note(path, "rotate+coarse", measure.timed([partial(coarse.coarse, p, rot, x) for p, x in pairs]))
            alone = measure.coarse_alone if path == "cuda" else measure.portable_coarse_alone
            note(path, "coarse", measure.timed(alone(packs, rot, xs)), packs[0].format.bytes)
            note(path, "select", measure.timed([partial(shortlist.select, scratch, r, n) for scratch in scratches]))
            best = partial(rerank.best, sources[0], portable=path == "triton")
            note(path, "rerank", measure.timed([partial(best, x, i) for i, x in measure.pairs(ids, xs)]))
        if others and (us := rivals.fp8(sources, xs)) is not None:
            note("fp8", "whole", us)
        for bits, rival in low.items():
            if rival is not None and m in RIVAL_ROWS:
                note(f"humming_int{bits}", "whole", rival(xs[:4]))


def _whole(note: _Recorder, path: str, packs: list[Any], rot: rotation.Rotation, sources: list[Any],
           xs: list[torch.Tensor], r: int) -> None:  # fmt: skip
    """The whole path with its counters, what they say themselves, and the whole path without them."""
    counters = ledger.make(xs[0].device)

    def calls(kept: ledger.Ledger | None) -> list[Any]:
        return [
            partial(shortlist.top_tokens, p, rot, sources[i % len(sources)], x, r, p.format.n, counters=kept)
            for i, (p, x) in enumerate(measure.pairs(packs, xs))
        ]

    graphs = [measure.captured(calls(kept)) for kept in (counters, None)]
    before = counters.read()
    # in turn, as what ran before decides how warm the GPU is: worth more than what counting costs
    times = [[measure.replayed(graph, count) for graph, count in graphs] for _ in range(3)]
    whole, uncounted = (sorted(column)[1] for column in zip(*times, strict=True))
    note(path, "whole", whole)
    after = counters.read()
    made, spent = (after[word] - before[word] for word in (ledger.CALLS, ledger.NANOSECONDS))
    if spent:
        note(path, "device clock", spent / made * 1e-3)
    note(path, "uncounted", uncounted)


class _Recorder:
    def __init__(self, results: dict[str, Any], m: int, n: int, k: int, stock: float) -> None:
        self.results, self.m, self.n, self.k, self.stock = results, m, n, k, stock

    def __call__(self, path: str, stage: str, us: float, bytes_read: int | None = None) -> None:
        share = None if bytes_read is None else round(bytes_read / us * 1e6 / self.results["read_bandwidth"], 3)
        row = {"m": self.m, "n": self.n, "k": self.k, "path": path, "stage": stage, "us": round(us, 1),
               "stock_us": round(self.stock, 1), "read_share": share}  # fmt: skip
        self.results["rows"].append(row)
        tail = "" if share is None else f"  {share:.1%} of the read bandwidth"
        print(
            f"{self.n}x{self.k} m={self.m:<4d}{path:7s}{stage:14s}{us:8.1f} us  {self.stock / us:5.2f} x stock{tail}",
            flush=True,
        )


if __name__ == "__main__":
    raise SystemExit(main())
