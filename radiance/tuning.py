"""(m, n, k, device) and a launch table -> launch configuration: no autotuning, nothing measured at run time.

One built-in table per architecture; every number in it comes from `radiance bench head` on the device named beside it
(tests/bench/results). `radiance tune` puts one of the user's own GPU into the cache (tables.py), read once a process. A
configuration changes speed only, never a result beyond the order of fp32 sums.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from typing import TypeVar

import torch

from radiance import tables
from radiance.errors import UnsupportedHead
from radiance.pack import Format


@dataclass(frozen=True)
class Device:
    """What the choice depends on. `shared`: bytes of shared memory one block may have."""

    name: str
    capability: tuple[int, int]
    processors: int
    shared: int

    @property
    def arch(self) -> str:
        """NVRTC's target. sm_90a: wgmma exists there and nowhere else."""
        major, minor = self.capability
        return f"sm_{major}{minor}" + ("a" if self.capability == (9, 0) else "")

    @property
    def is_hopper(self) -> bool:
        return self.capability == (9, 0)

    @property
    def early_launch(self) -> bool:
        """Programmatic launch: a kernel's prologue overlaps its predecessor's end."""
        return self.capability >= (9, 0)


@dataclass(frozen=True)
class Coarse:
    """One compiled coarse kernel. It serves `rows` = 8 * nt draft rows a pass."""

    stem: str  # coarse (mma.sync) or coarse_wgmma
    nt: int
    warps: int
    depth: int
    rt: int = 1
    split: int = 1
    ahead: int = 16

    @property
    def rows(self) -> int:
        return 8 * self.nt

    def shared_bytes(self, format: Format) -> int:
        """x as int8 and, where the columns are split, the swap buffers."""
        blocks = format.k_padded // 128
        if self.stem == "coarse_wgmma":  # whole rounds
            part = blocks if self.split == 1 else _up(-(-blocks // self.split), 4)
            blocks = _up(part, self.depth)
        swap = 0 if self.split == 1 else 2 * self.warps * (self.nt // self.split) * 512
        return blocks * self.nt * 1024 + swap


@dataclass(frozen=True)
class Segment:
    """Draft rows row0 .. row0+rows, served by `passes` passes of one kernel; one coarse scratch."""

    row0: int
    rows: int
    passes: int
    kernel: Coarse


#: most draft rows of one coarse scratch: 2 * n * 128 bytes (32 MB at n = 124160)
SCRATCH_ROWS = 128

# Widest first: the first that fits in shared memory and is no wider than the draft rows need. Microseconds of the coarse
# pass at 124160 x 5120 on an H200 (docs/kernels.md has what lost).
_HOPPER = (
    Coarse("coarse_wgmma", nt=8, warps=16, depth=4),
    Coarse("coarse_wgmma", nt=8, warps=16, depth=4, split=2),  # 64 rows: 74; 12 warps 75, 8 warps 91
    Coarse("coarse_wgmma", nt=4, warps=12, depth=8),  # 32 rows: 54; mma.sync 64
    Coarse("coarse_wgmma", nt=4, warps=12, depth=4, split=2),
    Coarse("coarse", nt=2, warps=16, depth=8),  # 16 rows: 47; wgmma 51
    Coarse("coarse", nt=1, warps=16, depth=8, ahead=8),  # 8 rows: 43; wgmma 47
)
_AMPERE = (
    Coarse("coarse", nt=4, warps=16, depth=4, rt=2),
    Coarse("coarse", nt=2, warps=16, depth=8),
    Coarse("coarse", nt=1, warps=16, depth=8),
)

# Slower on an H200 (50, 49; 56 us), for `radiance tune` on GPUs with less memory bandwidth for each processor.
_OTHERS = (
    Coarse("coarse", nt=1, warps=16, depth=4, ahead=8),
    Coarse("coarse", nt=1, warps=12, depth=12, ahead=8),
    Coarse("coarse", nt=2, warps=16, depth=4),
)
#: what a launch table may choose from; the GPU tests run them all
CANDIDATES: tuple[Coarse, ...] = tuple(dict.fromkeys((*_HOPPER, *_AMPERE, *_OTHERS)))


@lru_cache
def device(where: torch.device) -> Device:
    """The GPU behind a torch device."""
    p = torch.cuda.get_device_properties(where)
    shared = int(getattr(p, "shared_memory_per_block_optin", 0)) or 99 * 1024
    return Device(p.name, (p.major, p.minor), p.multi_processor_count, shared)


@dataclass(frozen=True)
class Measured:
    """What the user's launch table says of one head: empty or None where it says nothing."""

    coarse: tuple[Coarse, ...] = ()
    triton: tuple[Triton, ...] = ()
    crossover: int | None = None


@lru_cache
def measured(device: Device) -> dict[tuple[int, int], Measured]:
    """(n, k) -> the user's launches for it. A table that names a launch we do not ship is ignored whole, and logged."""
    table = tables.read(device.name, device.capability, device.processors)
    if table is None:
        return {}
    try:
        return {(shape.n, shape.k): _measured(shape) for shape in table.shapes}
    except (TypeError, ValueError) as error:
        tables.ignored(tables.path_for(device.name), str(error))
        return {}


@contextmanager
def using(shape: tables.Shape, device: Device) -> Iterator[None]:
    """For `radiance tune`: what was found for a head is in force inside, whatever the table on disk says."""
    known = measured(device)
    before = known.get((shape.n, shape.k))
    known[shape.n, shape.k] = _measured(shape)
    segments.cache_clear()
    try:
        yield
    finally:
        segments.cache_clear()
        del known[shape.n, shape.k]
        if before is not None:
            known[shape.n, shape.k] = before


def _measured(shape: tables.Shape) -> Measured:
    coarse = tuple(_known(Coarse(**fields), CANDIDATES) for fields in shape.coarse)
    return Measured(coarse, tuple(_known(Triton(**f), TRITON_CANDIDATES) for f in shape.triton), shape.crossover)


T = TypeVar("T")


def _known(launch: T, candidates: tuple[T, ...]) -> T:
    if launch not in candidates:
        raise ValueError(f"{launch} is no launch of this version")
    return launch


@lru_cache(maxsize=4096)
def segments(m: int, format: Format, device: Device) -> tuple[Segment, ...]:
    """How m draft rows are cut. Raises UnsupportedHead("k") if x of 8 rows does not fit in shared memory."""
    found: list[Segment] = []
    row0 = 0
    while row0 < m:
        kernel = coarse(min(m - row0, SCRATCH_ROWS), format, device)
        passes = max(1, min(m - row0, SCRATCH_ROWS) // kernel.rows)
        rows = min(m - row0, passes * kernel.rows)
        found.append(Segment(row0, rows, passes, kernel))
        row0 += rows
    return tuple(found)


def coarse(rows: int, format: Format, device: Device) -> Coarse:
    """The kernel for a pass over at most `rows` draft rows: the narrowest that holds them all, else the widest."""
    own = measured(device).get((format.n, format.k), Measured())
    table = own.coarse or (_HOPPER if device.is_hopper else _AMPERE)
    fitting = [c for c in table if fits(c, format, device)]
    if not fitting:
        raise UnsupportedHead("k", f"k={format.k}: x of 8 draft rows needs {table[-1].shared_bytes(format)} bytes of shared memory, "
                                   f"{device.name} has {device.shared} (tuning.coarse)")  # fmt: skip
    enough = [c for c in fitting if c.rows >= rows]
    narrowest = min((c.rows for c in enough), default=max(c.rows for c in fitting))
    return next(c for c in fitting if c.rows == narrowest)


def fits(launch: Coarse, format: Format, device: Device) -> bool:
    """Can this device run it: wgmma is Hopper's, and x must fit in shared memory."""
    spare = 2048  # static shared memory and what the driver keeps
    return (launch.stem == "coarse" or device.is_hopper) and launch.shared_bytes(format) + spare <= device.shared


def rotate_threads(k: int) -> int:
    """One thread for 8 elements: the butterflies of k = 5120 then take one round of 640 threads."""
    return max(128, min(640, _up(k // 8, 32)))


def select_keys(format: Format) -> int:
    """Block maxima one of 1024 threads holds in registers: a multiple of 8. Raises UnsupportedHead("n") above 56."""
    keys = _up(-(-(format.n_padded // format.block) // 1024), 8)
    if keys > 56:
        raise UnsupportedHead(
            "n", f"n={format.n}: select holds 1024 x 56 block maxima, {917_504} rows; keep the stock head"
        )
    return keys


def rerank_rows(m: int, r: int) -> int:
    """Candidates one block scores: one while that leaves processors idle, else four that share x."""
    return 1 if m * r <= 1024 else 4


@dataclass(frozen=True)
class Triton:
    """One launch of the portable coarse kernel: draft rows and head rows (a multiple of 64) of a tile, warps, pipeline
    stages, int8 or bf16 products."""

    rows: int
    warps: int
    stages: int
    is_int8: bool
    block_n: int = 64


# Inherited from the KCAND kernel on gfx1201 (warps 2/4/8 at M=16: 372/409/426 us, 32: 660/540/690, 64: 3428/1309/1219;
# more than one stage regresses there), not re-measured.
_GFX12 = (Triton(16, 2, 1, False), Triton(32, 4, 1, False), Triton(64, 8, 1, False))
# 64, 83 and 135 us at 124160 x 5120 on an H200 (h200-triton.json); docs/kernels.md has what lost
_HOPPER_TRITON = (Triton(16, 4, 3, True, block_n=128), Triton(32, 4, 3, True), Triton(64, 4, 3, True))
# not measured: the same in the shared memory that any GPU has (Triton(64, 4, 3, True) takes 115 KB)
_PORTABLE = (Triton(16, 4, 3, True), Triton(32, 4, 2, True), Triton(64, 4, 2, True))
TRITON_CANDIDATES: tuple[Triton, ...] = tuple(dict.fromkeys((*_GFX12, *_HOPPER_TRITON, *_PORTABLE)))


def triton(m: int, format: Format, device: Device, *, is_amd: bool) -> Triton:
    """The portable coarse kernel's launch for m draft rows: the narrowest tile that holds them, else the widest at a time."""
    own = measured(device).get((format.n, format.k), Measured())
    table = own.triton or (_GFX12 if is_amd else _HOPPER_TRITON if device.is_hopper else _PORTABLE)
    return next((t for t in table if t.rows >= m), table[-1])


def crossover_rows(n: int, k: int, device: Device) -> int:
    """Draft rows above which the caller keeps the stock GEMM. On an H200 (tests/bench/results/h200.json) the whole path wins at
    128 rows of 124160 x 5120 (200 us against 357), the most measured; at 49152 x 576 it wins at 64 rows (26.5 us against
    31.9) and loses at 128 (39.5 against 34.1), so heads that small stop at 64. So does every other GPU: a guess on the safe
    side. The portable path on that H200 (h200-triton.json) wins at 128 rows of the large head (332 us against 374) and at 1 of
    the small one (28 against 30), where its eight launches weigh more than on a GPU with less bandwidth."""
    own = measured(device).get((n, k), Measured()).crossover
    if own is not None:
        return own
    return 128 if device.is_hopper and n * k >= 1 << 27 else 64


def _up(value: int, step: int) -> int:
    return -(-value // step) * step
