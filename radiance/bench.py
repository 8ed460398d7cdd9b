"""`python -m radiance.bench head [--json FILE]`: microseconds of the draft head on the GPU at hand, beside the stock head.

Every time is a call's share of a CUDA graph of many calls, median over replays. Weights, codes and inputs rotate among
copies that together exceed the L2 cache, so each call finds it cold; x is drawn fresh. The stock head is F.linear + argmax in
the same run. The read bandwidth is that of a kernel that only reads (kernels/read.cu), over a buffer of 1 GiB.
"""

from __future__ import annotations

import argparse
import json
import shlex
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch

from radiance import coarse, pack, provenance, rerank, rotation, shortlist, tuning
from radiance.kernels import build
from radiance.source import Source

SHAPES = ((124160, 5120), (248320, 5120), (248320, 2048), (49152, 576))
ROWS = (1, 2, 4, 8, 16, 32, 64, 128)
COLD_BYTES = 256 << 20
RERANK = 32


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m radiance.bench", description=__doc__)
    verbs = parser.add_subparsers(dest="verb", required=True)
    head = verbs.add_parser("head", help="coarse, select, rerank and the whole path, against the stock head")
    head.add_argument("--json", type=Path, help="write the results here")
    head.add_argument("--shape", action="append", type=_shape, help="n x k, such as 124160x5120; may be repeated")
    head.add_argument("--rows", type=lambda text: [int(m) for m in text.split(",")], help="draft rows, such as 1,8,64")
    head.add_argument("--no-triton", action="store_true", help="leave the portable path out")
    head.add_argument("--no-cuda", action="store_true", help="leave the CUDA kernels out")
    args = parser.parse_args(argv)
    if not torch.cuda.is_available():
        print("radiance.bench needs a GPU; this torch sees none", file=sys.stderr)
        return 69
    results = describe(["python", "-m", "radiance.bench", *(sys.argv[1:] if argv is None else argv)])
    for n, k in args.shape or SHAPES:
        bench_head(n, k, args.rows or ROWS, results, cuda=not args.no_cuda, portable=not args.no_triton)
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
        "read_bandwidth": round(read_bandwidth(where)),
        "rows": [],
    }


def bench_head(n: int, k: int, rows: Sequence[int], results: dict[str, Any], *, cuda: bool, portable: bool) -> None:
    """All paths of one head; prints a line a measurement and appends it to results["rows"]."""
    where = torch.device("cuda", torch.cuda.current_device())
    rot = rotation.to(rotation.make(k), where)
    sources = [
        Source(torch.empty(n, k, dtype=torch.bfloat16, device=where).normal_(0, 0.02)) for _ in _copies(2 * n * k)
    ]
    layouts = ["fragment"] if cuda and rerank.has_cuda_kernels(where) else []
    heads = {layout: _heads(n, k, layout, where) for layout in [*layouts, *(["quarter"] if portable else [])]}
    for m in rows:
        xs = [torch.randn(m, k, device=where).to(torch.bfloat16) for _ in range(8)]
        stock = timed([partial(stock_head, source, x) for source, x in _pairs(sources, xs)])
        note = _Recorder(results, m, n, k, stock)
        note("stock", "whole", stock)
        for layout, packs in heads.items():
            path = "cuda" if layout == "fragment" else "triton"
            pairs = _pairs(packs, xs)
            scratches = [coarse.coarse(p, rot, x) for p, x in pairs[:8]]
            ids = [shortlist.select(scratch, RERANK, n) for scratch in scratches]
            whole = [
                partial(shortlist.top_tokens, p, rot, sources[i % len(sources)], x, RERANK, n)
                for i, (p, x) in enumerate(pairs)
            ]
            note(path, "whole", timed(whole))
            note(path, "rotate+coarse", timed([partial(coarse.coarse, p, rot, x) for p, x in pairs]))
            alone = _coarse_alone if path == "cuda" else _portable_coarse_alone
            note(path, "coarse", timed(alone(packs, rot, xs)), packs[0].format.bytes)
            note(path, "select", timed([partial(shortlist.select, scratch, RERANK, n) for scratch in scratches]))
            best = partial(rerank.best, sources[0], portable=path == "triton")
            note(path, "rerank", timed([partial(best, x, i) for i, x in _pairs(ids, xs)]))
        fp8 = fp8_rival(sources, xs)
        if fp8 is not None:
            note("fp8", "whole", fp8)


def _coarse_alone(
    packs: list[pack.Packed], rot: rotation.Rotation, xs: list[torch.Tensor]
) -> list[Callable[[], object]]:
    """The coarse kernel without rotate: its inputs are made beforehand."""
    segment = tuning.segments(xs[0].shape[0], packs[0].format, tuning.device(packs[0].device))[0]
    prepared = [coarse.rotated(packs[0], rot, x[: segment.rows], segment) for x in xs]
    return [partial(coarse.multiply, p, ready, segment) for p, ready in _pairs(packs, prepared)]


def _portable_coarse_alone(
    packs: list[pack.Packed], rot: rotation.Rotation, xs: list[torch.Tensor]
) -> list[Callable[[], object]]:
    from radiance.kernels import coarse_triton, rotate_triton

    f, m = packs[0].format, xs[0].shape[0]
    launch = tuning.triton(m, f, tuning.device(packs[0].device), is_amd=torch.version.hip is not None)
    rows = -(-m // launch.rows) * launch.rows
    prepared = [rotate_triton.rotate(rot, x, rows, f.k_padded, by_words=launch.is_int8) for x in xs]
    return [partial(coarse_triton.multiply, p, levels, steps, launch) for p, (levels, steps) in _pairs(packs, prepared)]


def stock_head(source: Source, x: torch.Tensor) -> torch.Tensor:
    """What a greedy drafter does without us."""
    return torch.nn.functional.linear(x, source.weight).argmax(1)


def fp8_rival(sources: list[Source], xs: list[torch.Tensor]) -> float | None:
    """Microseconds of e4m3 x e4m3 with row scales (torch._scaled_mm) + argmax; None where the GPU has none of it."""
    if torch.cuda.get_device_capability() < (8, 9) or sources[0].k % 16 or sources[0].n % 16:
        return None
    m, n = xs[0].shape[0], sources[0].n
    up = -(-m // 16) * 16
    e4m3 = [source.weight.to(torch.float8_e4m3fn) for source in sources]
    x8 = torch.nn.functional.pad(xs[0], (0, 0, 0, up - m)).to(torch.float8_e4m3fn)
    sx, sw = torch.ones(up, 1, device=x8.device), torch.ones(1, n, device=x8.device)

    def call(w: torch.Tensor) -> torch.Tensor:
        return torch._scaled_mm(x8, w.t(), scale_a=sx, scale_b=sw, out_dtype=torch.bfloat16)[:m].argmax(1)

    return timed([partial(call, w) for w in e4m3])


def timed(calls: Sequence[Callable[[], object]], least: int = 12, replays: int = 11) -> float:
    """Microseconds of one call: `calls` in turn in one CUDA graph, median over its replays."""
    side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for call in calls:
            call()
    torch.cuda.synchronize()
    count = -(-least // len(calls)) * len(calls)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for i in range(count):
            calls[i % len(calls)]()
    times: list[float] = []
    for replay in range(replays + 2):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        begin.record()
        graph.replay()
        end.record()
        torch.cuda.synchronize()
        if replay >= 2:
            times.append(begin.elapsed_time(end) * 1e3 / count)
    return sorted(times)[len(times) // 2]


def read_bandwidth(where: torch.device) -> float:
    """Bytes a second of a kernel that reads 1 GiB and does nothing else; torch's sum where CUDA kernels cannot run."""
    data = torch.randint(0, 2**31 - 1, (1 << 28,), dtype=torch.int32, device=where)
    out = torch.zeros(1, dtype=torch.int32, device=where)
    if not rerank.has_cuda_kernels(where):
        return data.nbytes / timed([data.sum], least=4) * 1e6
    device = tuning.device(where)
    kernel = build.kernel("read", "read_all", {}, where, device.arch)
    args = (build.pointer(data), build.long(data.nbytes // 16), build.pointer(out))
    return data.nbytes / timed([partial(build.launch, kernel, (device.processors * 4, 1), 512, 0, args)], least=4) * 1e6


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


def _heads(n: int, k: int, layout: str, where: torch.device) -> list[pack.Packed]:
    f = pack.Format(layout, n, k, pack.default_group(k))  # type: ignore[arg-type]
    heads = []
    for _ in _copies(f.bytes):
        packed = pack.allocate(f, where)
        for start in range(0, n, 16384):
            rows = min(16384, n - start)
            codes = torch.randint(0, 4, (rows, k), dtype=torch.uint8, device=where)
            pack.write_rows(packed, start, codes, torch.rand(rows, f.groups, device=where) + 0.5)
        heads.append(packed)
    return heads


def _copies(size: int) -> range:
    return range(max(1, min(16, -(-COLD_BYTES // size) + 1)) if size < COLD_BYTES * 2 else 1)


def _pairs(left: list[Any], right: list[Any]) -> list[tuple[Any, Any]]:
    count = max(len(left), min(len(right), 4))
    return [(left[i % len(left)], right[i % len(right)]) for i in range(count)]


def _shape(text: str) -> tuple[int, int]:
    n, k = text.lower().split("x")
    return int(n), int(k)


if __name__ == "__main__":
    raise SystemExit(main())
