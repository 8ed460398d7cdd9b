"""Measures which launch of each coarse kernel is fastest on the GPU at hand, and up to how many draft rows our path wins.

The result is a launch table (tables.py) that every later start on this machine reads. Only launches that this version ships
and tests are tried (tuning.CANDIDATES), so the answer is that of the built-in table or better by measurement.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from functools import partial
from importlib import metadata
from typing import Any

import torch

from radiance import __version__, coarse, measure, pack, rotation, shortlist, tables, tuning
from radiance.errors import UnsupportedHead

RERANK = 32
#: draft rows at which ours and stock are compared, ascending
ROWS = (8, 16, 32, 64, 96, 128, 192, 256)
#: a wider kernel takes the place of a narrower one only if it is faster by more than two runs differ
NOISE = 0.02


def table(shapes: Sequence[tuple[int, int]], command: str, say: Callable[[str], None]) -> tables.Table:
    """The launch table of this GPU for heads of n x k; `say` gets a line a measurement."""
    where = torch.device("cuda", torch.cuda.current_device())
    device = tuning.device(where)
    found = tuple(_shape(n, k, where, say) for n, k in shapes)
    return tables.Table(device.name, device.capability, device.processors, found, __version__, torch.__version__,
                        _version("triton"), command)  # fmt: skip


def _shape(n: int, k: int, where: torch.device, say: Callable[[str], None]) -> tables.Shape:
    layout = pack.choose(n, k, where).layout
    heads = measure.heads(n, k, layout, where)
    rot = rotation.to(rotation.make(k), where)
    is_cuda = layout == "fragment"
    device = tuning.device(where)
    times: dict[Any, float] = {}
    candidates: list[Any] = list(tuning.TRITON_CANDIDATES)
    if is_cuda:
        candidates = [c for c in tuning.CANDIDATES if tuning.fits(c, heads[0].format, device)]
    for launch in candidates:
        try:
            times[launch] = _cuda_us(launch, heads, rot) if is_cuda else _portable_us(launch, heads, rot)
        except Exception as error:  # a launch that this GPU refuses is no candidate
            torch.cuda.synchronize()
            say(f"{n}x{k} {launch}: {type(error).__name__}")
            continue
        say(f"{n}x{k} {launch}: {times[launch]:.1f} us")
    if not times:
        raise UnsupportedHead(
            "launch", f"no coarse kernel of ours runs at {n} x {k} on {torch.cuda.get_device_name(where)}"
        )
    chosen = tuple(asdict(launch) for launch in best(times))
    shape = tables.Shape(n, k, chosen) if is_cuda else tables.Shape(n, k, triton=chosen)
    with tuning.using(shape, device):
        return replace(shape, crossover=_crossover(n, k, heads, rot, where, say))


def best(times: dict[Any, float]) -> list[Any]:
    """The fastest launch of each number of draft rows, ascending; none that a wider one beats."""
    kept: list[Any] = []
    for rows in sorted({launch.rows for launch in times}, reverse=True):
        fastest = min((launch for launch in times if launch.rows == rows), key=times.__getitem__)
        if not kept or times[fastest] <= times[kept[0]] * (1 + NOISE):
            kept.insert(0, fastest)
    return kept


def _cuda_us(launch: tuning.Coarse, heads: list[pack.Packed], rot: rotation.Rotation) -> float:
    segment = tuning.Segment(0, launch.rows, 1, launch)
    xs = _draft_rows(launch.rows, heads[0])
    prepared = [coarse.rotated(heads[0], rot, x, segment) for x in xs]
    return measure.timed([partial(coarse.multiply, p, x, segment) for p, x in measure.pairs(heads, prepared)])


def _portable_us(launch: tuning.Triton, heads: list[pack.Packed], rot: rotation.Rotation) -> float:
    from radiance.kernels import coarse_triton

    xs = _draft_rows(launch.rows, heads[0])
    return measure.timed([partial(coarse_triton.run, p, rot, x, launch) for p, x in measure.pairs(heads, xs)])


def _crossover(n: int, k: int, heads: list[pack.Packed], rot: rotation.Rotation, where: torch.device,
               say: Callable[[str], None]) -> int:  # fmt: skip
    """The most draft rows up to which ours wins at every number measured; 0: it never does."""
    sources = measure.sources(n, k, where)
    found = 0
    for m in ROWS:
        xs = _draft_rows(m, heads[0])
        ours = measure.timed([
            partial(shortlist.top_tokens, p, rot, sources[i % len(sources)], x, min(RERANK, n), n)
            for i, (p, x) in enumerate(measure.pairs(heads, xs))
        ])  # fmt: skip
        stock = measure.timed([partial(measure.stock_head, source, x) for source, x in measure.pairs(sources, xs)])
        say(f"{n}x{k} {m} rows: {ours:.1f} us, stock {stock:.1f}")
        if ours >= stock:
            break
        found = m
    return found


def _draft_rows(m: int, packed: pack.Packed) -> list[torch.Tensor]:
    return [torch.randn(m, packed.format.k, device=packed.device).to(torch.bfloat16) for _ in range(4)]


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:  # some GPU builds of torch carry Triton under another name
        return ""
