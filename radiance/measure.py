"""Microseconds on the GPU at hand, for `radiance bench` and `radiance tune`.

Every time is a call's share of a CUDA graph of many calls, median over replays. Weights, codes and inputs rotate among
copies that together exceed the L2 cache, so each call finds it cold.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch

from radiance import coarse, pack, rerank, rotation, tuning
from radiance.kernels import build
from radiance.source import Source

#: heads n x k that are measured unless others are asked for
SHAPES = ((124160, 5120), (248320, 5120), (248320, 2048), (49152, 576))
COLD_BYTES = 256 << 20


def timed(calls: Sequence[Callable[[], object]], least: int = 12, replays: int = 11) -> float:
    """Microseconds of one call: `calls` in turn in one CUDA graph of at least `least`, median over its replays."""
    return replayed(*captured(calls, least), replays)


def captured(calls: Sequence[Callable[[], object]], least: int = 12) -> tuple[torch.cuda.CUDAGraph, int]:
    """A graph of `calls` in turn, and how many it holds; each has run once before."""
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
    return graph, count


def replayed(graph: torch.cuda.CUDAGraph, count: int, replays: int = 11) -> float:
    """Microseconds of one of the graph's `count` calls, median over `replays` after two unmeasured ones."""
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


def stock_head(source: Source, x: torch.Tensor) -> torch.Tensor:
    """What a greedy drafter does without us."""
    return torch.nn.functional.linear(x, source.weight).argmax(1)


def coarse_alone(
    packs: list[pack.Packed], rot: rotation.Rotation, xs: list[torch.Tensor]
) -> list[Callable[[], object]]:
    """The coarse kernel without rotate: its inputs, from x [m, k], are made beforehand."""
    segment = tuning.segments(xs[0].shape[0], packs[0].format, tuning.device(packs[0].device))[0]
    prepared = [coarse.rotated(packs[0], rot, x[: segment.rows], segment) for x in xs]
    return [partial(coarse.multiply, p, ready, segment) for p, ready in pairs(packs, prepared)]


def portable_coarse_alone(
    packs: list[pack.Packed], rot: rotation.Rotation, xs: list[torch.Tensor]
) -> list[Callable[[], object]]:
    """The same of the portable kernels, x [m, k]."""
    from radiance.kernels import coarse_triton, rotate_triton

    f, m = packs[0].format, xs[0].shape[0]
    launch = tuning.triton(m, f, tuning.device(packs[0].device), is_amd=torch.version.hip is not None)
    rows = -(-m // launch.rows) * launch.rows
    prepared = [rotate_triton.rotate(rot, x, rows, f.k_padded, by_words=launch.is_int8) for x in xs]
    return [partial(coarse_triton.multiply, p, levels, steps, launch) for p, (levels, steps) in pairs(packs, prepared)]


def heads(n: int, k: int, layout: str, where: torch.device) -> list[pack.Packed]:
    """Packed heads [n, k] with random codes, as many as keep the cache cold."""
    f = pack.Format(layout, n, k, pack.default_group(k))  # type: ignore[arg-type]
    found = []
    for _ in copies(f.bytes):
        packed = pack.allocate(f, where)
        for start in range(0, n, 16384):
            rows = min(16384, n - start)
            codes = torch.randint(0, 4, (rows, k), dtype=torch.uint8, device=where)
            pack.write_rows(packed, start, codes, torch.rand(rows, f.groups, device=where) + 0.5)
        found.append(packed)
    return found


def sources(n: int, k: int, where: torch.device) -> list[Source]:
    """Random bf16 heads [n, k], as many as keep the cache cold."""
    return [Source(torch.empty(n, k, dtype=torch.bfloat16, device=where).normal_(0, 0.02)) for _ in copies(2 * n * k)]


def copies(size: int) -> range:
    """One pass over as many buffers of `size` bytes as exceed the cache, at most 16."""
    return range(max(1, min(16, -(-COLD_BYTES // size) + 1)) if size < COLD_BYTES * 2 else 1)


def pairs(left: list[Any], right: list[Any]) -> list[tuple[Any, Any]]:
    """Each of the longer list with one of the other, in turn; at most four if only `right` is longer."""
    count = max(len(left), min(len(right), 4))
    return [(left[i % len(left)], right[i % len(right)]) for i in range(count)]


def shape(text: str) -> tuple[int, int]:
    """NxK -> (n, k)."""
    n, k = text.lower().split("x")
    return int(n), int(k)
