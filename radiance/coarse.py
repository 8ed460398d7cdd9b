"""Host side of the coarse pass: x [m, k] -> approximate logits of every head row in a scratch, with block maxima.

The scratch keeps what its kernels wrote; only shortlist.select and Scratch.row_values know its layouts. The value of a
token is bf16( step_x * unit * sum factor * (2v - 3) * level ), and a block's maximum is taken from those very bf16 values.
A draft row that is all zero, or holds NaN or infinity, has coarse value 0 everywhere.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from radiance import ledger, tuning
from radiance.errors import UnsupportedHead
from radiance.kernels import build
from radiance.pack import Format, Packed
from radiance.rotation import Rotation, constant, hadamard

X_TYPES = {torch.bfloat16: 0, torch.float16: 1, torch.float32: 2}


@dataclass
class Piece:
    """Coarse results of draft rows row0 .. row0+rows.

    fragment: values bf16 [pass, tile, row of the pass, 8, 2] (pairs token, token + 8), maxima keys uint16 [row, tile].
    quarter:  values bf16 [row, n_padded], maxima bf16 [row, block].     reference: values bf16 [row, n], no maxima.
    """

    row0: int
    rows: int
    pass_rows: int
    values: torch.Tensor
    maxima: torch.Tensor | None


@dataclass
class Scratch:
    """Coarse results of m draft rows for one head. `kind`: cuda, triton or reference."""

    kind: str
    format: Format
    m: int
    pieces: list[Piece]

    def row_values(self) -> torch.Tensor:
        """bf16 [m, n] in token order: for callers that need a whole row, and for tests. A copy."""
        if not self.pieces:
            return torch.empty(0, self.format.n, dtype=torch.bfloat16)
        rows = []
        for piece in self.pieces:
            values = piece.values
            if self.kind == "cuda":  # pass, tile, row, token % 8, token / 8
                values = values.permute(0, 2, 1, 4, 3).reshape(-1, self.format.n_padded)[: piece.rows]
            rows.append(values[:, : self.format.n])
        return torch.cat(rows)


def coarse(packed: Packed, rotation: Rotation, x: torch.Tensor) -> Scratch:
    """x [m, k] (bf16, fp16 or fp32, any m, rows may be strided) -> Scratch of about 2 n m bytes."""
    x = checked(packed, rotation, x)
    kind = path(packed)
    if kind == "reference":
        from radiance import reference

        values = reference.coarse(packed, rotation, x)
        pieces = [Piece(0, x.shape[0], x.shape[0], values, None)] if x.shape[0] else []
    elif kind == "triton":
        from radiance.kernels import coarse_triton

        pieces = [Piece(r0, v.shape[0], v.shape[0], v, t) for r0, v, t in coarse_triton.coarse(packed, rotation, x)]
    else:
        cuts = tuning.segments(x.shape[0], packed.format, tuning.device(packed.device))
        pieces = [run(packed, rotation, x, segment) for segment in cuts]
    return Scratch(kind, packed.format, x.shape[0], pieces)


def path(packed: Packed) -> str:
    """Which backend serves these buffers: cuda, triton or reference."""
    if packed.device.type == "cpu":
        return "reference"
    return "cuda" if packed.format.layout == "fragment" else "triton"


def checked(packed: Packed, rotation: Rotation, x: torch.Tensor) -> torch.Tensor:
    """x with contiguous rows. Raises ValueError naming what does not fit."""
    f = packed.format
    if x.dim() != 2 or x.shape[1] != f.k or rotation.k != f.k or x.dtype not in X_TYPES:
        raise ValueError(
            f"x {x.dtype} {tuple(x.shape)}, rotation of {rotation.k}, head of k={f.k}: want x [m, {f.k}] in bf16, fp16 or fp32"
            " and a rotation of the same k (coarse)"
        )
    if x.device != packed.device or rotation.x_scale.device != packed.device:
        raise ValueError(
            f"x on {x.device}, rotation on {rotation.x_scale.device}, head on {packed.device}: move them together (coarse)"
        )
    return x if x.stride(1) == 1 and x.stride(0) >= 0 else x.contiguous()


@dataclass
class Rotated:
    """What rotate() made of a segment: `levels` int8 [pass, block, nt, 1024] in the kernel's order, `steps` fp32 [pass, rows]."""

    levels: torch.Tensor
    steps: torch.Tensor


def run(packed: Packed, rotation: Rotation, x: torch.Tensor, segment: tuning.Segment,
        call: torch.Tensor | None = None) -> Piece:  # fmt: skip
    """Rotate and coarse for one segment of draft rows on the current stream; nothing synchronises. `call` (rerank.Answer)
    is stamped with the time: give it with the first segment."""
    part = x[segment.row0 : segment.row0 + segment.rows]
    return multiply(packed, rotated(packed, rotation, part, segment, call), segment)


def rotated(packed: Packed, rotation: Rotation, x: torch.Tensor, segment: tuning.Segment,
            call: torch.Tensor | None = None) -> Rotated:  # fmt: skip
    """x [rows, k] of the segment -> its levels and steps. Not launched early: it is the one that waits for whatever the
    caller queued before us."""
    f, c, where = packed.format, segment.kernel, packed.device
    levels = torch.empty(segment.passes, f.k_padded // 128, c.nt, 1024, dtype=torch.int8, device=where)
    steps = torch.empty(segment.passes, c.rows, dtype=torch.float32, device=where)
    args = (
        build.pointer(x), build.long(x.stride(0)), build.integer(x.shape[0]), build.pointer(rotation.x_scale),
        build.pointer(dense_table(rotation.a, where)), build.real(rotation.norm), build.pointer(levels), build.pointer(steps),
        build.pointer(call),
    )  # fmt: skip
    kernel = rotate_kernel(f, rotation, x.dtype, c, where)
    grid = (segment.passes * c.rows, 1)
    build.launch(kernel, grid, tuning.rotate_threads(rotation.k), rotate_shared(rotation), args)
    return Rotated(levels, steps)


def multiply(packed: Packed, x: Rotated, segment: tuning.Segment) -> Piece:
    """The coarse kernel, a launch a pass."""
    f, c, where = packed.format, segment.kernel, packed.device
    tiles = f.n_padded // 16
    values = torch.empty(segment.passes, tiles, c.rows, 8, 2, dtype=torch.bfloat16, device=where)
    stride = -(-tiles // 8) * 8  # rows of maxima start at 16 bytes
    maxima = torch.empty(segment.passes * c.rows, stride, dtype=torch.uint16, device=where)
    device = tuning.device(where)
    kernel = coarse_kernel(f, c, where)
    grid = (device.processors // c.split * c.split, 1)
    for p in range(segment.passes):
        args = (
            build.pointer(packed.codes), build.pointer(packed.half_steps), build.pointer(packed.units),
            build.pointer(x.levels[p]), build.pointer(x.steps[p]), build.pointer(values[p]), build.pointer(maxima[p * c.rows]),
            build.integer(tiles), build.integer(stride),
        )  # fmt: skip
        build.launch(kernel, grid, c.warps * 32, c.shared_bytes(f), args, cluster=c.split, early=device.early_launch)
    return Piece(segment.row0, segment.rows, c.rows, values, maxima)


def coarse_kernel(f: Format, c: tuning.Coarse, where: torch.device) -> build.Kernel:
    defines: dict[str, int | str] = {
        "BLOCKS": f.k_padded // 128,
        "GROUP": f.group,
        "NT": c.nt,
        "WARPS": c.warps,
        "DEPTH": c.depth,
        "AHEAD": c.ahead,
    }
    defines |= {"RT": c.rt} if c.stem == "coarse" else {"SPLIT": c.split}
    return build.kernel(c.stem, "coarse", defines, where, tuning.device(where).arch)


def rotate_kernel(
    f: Format, rotation: Rotation, dtype: torch.dtype, c: tuning.Coarse, where: torch.device
) -> build.Kernel:
    device = tuning.device(where)
    if rotate_shared(rotation) + 1024 > device.shared:
        raise UnsupportedHead(
            "k", f"k={f.k}: one rotated row does not fit in {device.shared} bytes of shared memory (rotate)"
        )
    defines = ledger.defines() | {
        "K": f.k, "A": rotation.a, "B": rotation.b, "DENSE": int(rotation.a > 1 and hadamard(rotation.a) is not None),
        "NT": c.nt, "TENSOR": int(c.stem == "coarse_wgmma"), "X_TYPE": X_TYPES[dtype], "THREADS": tuning.rotate_threads(f.k),
    }  # fmt: skip
    return build.kernel("rotate", "rotate", defines, where, device.arch)


def rotate_shared(rotation: Rotation) -> int:
    """Bytes: two rows of k with a word of padding for every 8, and the dense factor where it is small (rotate.cu)."""
    table = 4 * rotation.a * (-(-rotation.a // 4) * 4) if rotation.a <= 64 else 0
    return table + 4 * 2 * (rotation.k + rotation.k // 8 + 1)


def dense_table(a: int, where: torch.device) -> torch.Tensor:
    """fp32 [a, 4 ceil(a/4)]: the dense factor transposed, rows padded to 16 bytes."""

    def make() -> torch.Tensor:
        table = torch.zeros(a, -(-a // 4) * 4)
        matrix = hadamard(a)
        if matrix is not None:
            table[:, :a] = torch.tensor(matrix, dtype=torch.float32).t()
        return table

    return constant("padded", a, where, make)
