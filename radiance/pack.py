"""Storage formats of the 2-bit head: the only module that knows byte layouts.

A quantised row is k codes v in 0..3 and one half-step s for each group of columns; the weight it stands for is
s * (2v - 3). Two layouts:

    fragment   16-row tiles in the register order of an NVIDIA 16x8x32 int8 tensor-core product: one 16-byte load of
               a lane is its share of 16 rows x 128 columns, so nothing is shuffled or staged on the way. A half-step is
               a whole multiple 1..42 of its row's unit (bf16): 42 * 3 is an int8, so a row's product is one int32 sum.
    quarter    row major; byte j of a span of 4 groups carries columns j, g+j, 2g+j and 3g+j, so one byte load feeds
               four contiguous dots, each with one half-step (bf16). Portable.

snap() rounds half-steps to what a format can hold; what is snapped comes back bit for bit.

Padding lives in here: columns up to `k_padded` (there is no zero level, so whoever multiplies keeps x = 0 there) and
rows up to `n_padded` (half-step 0; never candidates). Sizes in bytes; shapes in the docstrings.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch

from radiance.errors import UnsupportedHead

Layout = Literal["fragment", "quarter"]

#: Changes when the bytes of either layout change; part of the key of a packed copy on disk.
VERSION = 1
#: Chunks of rows start at a multiple of this: four 16-row tiles, one 64-row block of maxima.
ROW_STEP = 64
_TILE = 16
_K_BLOCK = 128
#: greatest multiple of a row's unit: 3 * 42 is the greatest int8 a level can be
MAX_FACTOR = 42
_SIGNED = 0xAA  # v -> v - 2 in two bits, four times


@dataclass(frozen=True)
class Format:
    """Everything that decides the bytes. `n`, `k`: the head's own sizes; `group`: columns sharing a half-step."""

    layout: Layout
    n: int
    k: int
    group: int
    version: int = VERSION

    def __post_init__(self) -> None:
        if self.layout not in ("fragment", "quarter"):
            raise UnsupportedHead(
                "format", f"layout {self.layout!r} is unknown; use 'fragment' or 'quarter' (pack.Format)"
            )
        if self.n < 1 or self.k < 64:
            raise UnsupportedHead("shape", f"n={self.n}, k={self.k}: a head needs n >= 1 and k >= 64 (pack.Format)")
        if self.group not in (64, 128):
            raise UnsupportedHead("format", f"group={self.group} is not a kernel's; use 64 or 128 (pack.Format)")
        if self.version != VERSION:
            raise UnsupportedHead("format", f"packed version {self.version}, this build reads {VERSION}: pack again")

    @property
    def block(self) -> int:
        """Rows that share one block maximum."""
        return _TILE if self.layout == "fragment" else 64

    @property
    def n_padded(self) -> int:
        return _up(self.n, ROW_STEP)

    @property
    def k_padded(self) -> int:
        return _up(self.k, _K_BLOCK if self.layout == "fragment" else 4 * self.group)

    @property
    def groups(self) -> int:
        """Half-steps of a row, without padding."""
        return -(-self.k // self.group)

    @property
    def groups_padded(self) -> int:
        return _up(self.k_padded // self.group, 4)

    @property
    def codes_shape(self) -> tuple[int, ...]:
        """uint8. fragment: [tile, k block, lane, byte]; quarter: [row, byte]."""
        if self.layout == "fragment":
            return (self.n_padded // _TILE, self.k_padded // _K_BLOCK, 32, 16)
        return (self.n_padded, self.k_padded // 4)

    @property
    def half_steps_shape(self) -> tuple[int, ...]:
        """fragment: uint8 multiples of the unit [tile, group/4, row of 8, group%4, row/8]; quarter: bf16 [group, row]."""
        if self.layout == "fragment":
            return (self.n_padded // _TILE, self.groups_padded // 4, 8, 4, 2)
        return (self.groups_padded, self.n_padded)

    @property
    def bytes(self) -> int:
        """Codes, half-steps and units together, padding included."""
        return self.n_padded * (
            self.k_padded // 4 + (self.groups_padded + 4 if self.layout == "fragment" else 2 * self.groups_padded)
        )

    @property
    def bits_per_weight(self) -> float:
        """Without padding: 2 and the half-steps' share."""
        return 2 + (8 * self.groups + 32 if self.layout == "fragment" else 16 * self.groups) / self.k


@dataclass
class Packed:
    """A head's packed copy: `codes` uint8 and `half_steps` in the shapes their format states, `units` fp32 [n_padded]
    (fragment; empty for quarter)."""

    format: Format
    codes: torch.Tensor
    half_steps: torch.Tensor
    units: torch.Tensor

    @property
    def device(self) -> torch.device:
        return self.codes.device


def default_group(k: int) -> int:
    """128 columns where k is large (the per-group work dominates a kernel's arithmetic), 64 where k is small."""
    return 128 if k >= 1024 else 64


def choose(n: int, k: int, device: torch.device | str) -> Format:
    """The format for a head [n, k] on `device`: fragment order where the CUDA kernels run, else quarter-split."""
    device = torch.device(device)
    nvidia = device.type == "cuda" and torch.version.hip is None
    fragment = nvidia and torch.cuda.get_device_capability(device) >= (8, 0)
    return Format("fragment" if fragment else "quarter", n, k, default_group(k))


def allocate(format: Format, device: torch.device | str) -> Packed:
    """Zeroed buffers; `format.bytes` bytes of device memory, for good."""
    fragment = format.layout == "fragment"
    return Packed(
        format,
        torch.zeros(format.codes_shape, dtype=torch.uint8, device=device),
        torch.zeros(format.half_steps_shape, dtype=torch.uint8 if fragment else torch.bfloat16, device=device),
        torch.zeros(format.n_padded if fragment else 0, dtype=torch.float32, device=device),
    )


def cleared(packed: Packed) -> Packed:
    """The same buffers, zeroed: padding must be zero, and after a deep sleep is not."""
    for buffer in (packed.codes, packed.half_steps, packed.units):
        buffer.zero_()
    return packed


def snap(format: Format, half_steps: torch.Tensor) -> torch.Tensor:
    """Half-steps fp32 [rows, groups] rounded to what the format holds, fp32: choose codes for these. Snapping twice is
    snapping once. fragment: by at most 1/84 of the row's greatest (1/42 near 0), and none is 0 unless all of the row's are."""
    if format.layout == "quarter":
        return half_steps.to(torch.bfloat16).float()
    factors, units = _factors(half_steps)
    return factors.float() * units[:, None]


def write_rows(packed: Packed, row0: int, codes: torch.Tensor, half_steps: torch.Tensor) -> None:
    """Store rows row0.. in place. `codes` uint8 [rows, k] in 0..3, `half_steps` float [rows, groups], stored as snap() rounds.

    Temporaries are a few copies of the chunk. `row0` is a multiple of 64 and so is the number of rows, except in the
    chunk that ends at n.
    """
    f = packed.format
    rows = codes.shape[0]
    ends_well = rows % ROW_STEP == 0 or row0 + rows == f.n
    if row0 % ROW_STEP or not ends_well or row0 < 0 or row0 + rows > f.n:
        raise ValueError(
            f"rows {row0}..{row0 + rows} of {f.n}: start at a multiple of {ROW_STEP} and stop at one or at n (write_rows)"
        )
    if codes.shape != (rows, f.k) or codes.dtype != torch.uint8 or half_steps.shape != (rows, f.groups):
        raise ValueError(
            f"codes {codes.dtype} {tuple(codes.shape)}, half_steps {tuple(half_steps.shape)}: "
            f"want uint8 {(rows, f.k)} and {(rows, f.groups)} (write_rows)"
        )
    if rows == 0:
        return
    up = _up(rows, ROW_STEP)
    codes = torch.nn.functional.pad(codes, (0, f.k_padded - f.k, 0, up - rows))
    if f.layout == "fragment":
        tile = slice(row0 // _TILE, (row0 + up) // _TILE)
        factors, units = _factors(half_steps)
        # padding is 1, the least the kernels' table of levels allows; its unit or its x is 0
        factors = torch.nn.functional.pad(factors, (0, f.groups_padded - f.groups, 0, up - rows), value=1)
        packed.codes[tile] = _to_fragments(codes)
        packed.half_steps[tile] = factors.view(-1, 2, 8, f.groups_padded // 4, 4).permute(0, 3, 2, 4, 1)
        packed.units[row0 : row0 + up] = torch.nn.functional.pad(units, (0, up - rows))
    else:
        steps = torch.nn.functional.pad(half_steps.to(torch.bfloat16), (0, f.groups_padded - f.groups, 0, up - rows))
        packed.codes[row0 : row0 + up] = _to_quarters(codes, f.group)
        packed.half_steps[:, row0 : row0 + up] = steps.t()


def read_rows(packed: Packed, row0: int, rows: int) -> tuple[torch.Tensor, torch.Tensor]:
    """What write_rows stored: (codes uint8 [rows, k], half_steps fp32 [rows, groups]); any row0."""
    f = packed.format
    if row0 < 0 or rows < 0 or row0 + rows > f.n:
        raise ValueError(f"rows {row0}..{row0 + rows} lie outside 0..{f.n} (read_rows)")
    if f.layout == "fragment":
        first = row0 // _TILE
        tile = slice(first, -(-(row0 + rows) // _TILE))
        codes = _from_fragments(packed.codes[tile])
        steps = packed.half_steps[tile].permute(0, 4, 2, 1, 3).reshape(-1, f.groups_padded).float()
        steps = steps * packed.units[tile.start * _TILE : tile.stop * _TILE, None]
        inside = slice(row0 - first * _TILE, row0 - first * _TILE + rows)
        return codes[inside, : f.k].contiguous(), steps[inside, : f.groups].contiguous()
    codes = _from_quarters(packed.codes[row0 : row0 + rows], f.group)
    steps = packed.half_steps[: f.groups, row0 : row0 + rows].t()
    return codes[:, : f.k].contiguous(), steps.float().contiguous()


def _up(value: int, step: int) -> int:
    return -(-value // step) * step


def _factors(half_steps: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Half-steps [rows, groups] >= 0 -> (multiples uint8 1..42 [rows, groups], units fp32 [rows], bf16 values).

    A unit has 8 significant bits and 42 has 6: their product is exact in fp32, so the greatest half-step survives."""
    steps = half_steps.float()
    units = (steps.amax(dim=1) / MAX_FACTOR).to(torch.bfloat16).float()
    factors = (steps / units.clamp_min(torch.finfo(torch.float32).tiny)[:, None]).round().clamp(1, MAX_FACTOR)
    return factors.to(torch.uint8), units


def _to_fragments(codes: torch.Tensor) -> torch.Tensor:
    """[rows, k_padded] -> [tile, k block, lane, byte]. Row = 8*r + lane/4, column = 32*word + 16*h + 4*(lane%4) + j; in a
    32-bit word the code stands at bit 16*h + 4*j + 2*r as v - 2, a signed number of two bits: nibbles are what a byte
    permutation takes as its selector, so one instruction looks up the four values of one register."""
    tiles, blocks = codes.shape[0] // _TILE, codes.shape[1] // _K_BLOCK
    # axes: tile, r, lane/4, block, word, h, lane%4, j/2, j%2
    c = codes.view(tiles, 2, 8, blocks, 4, 2, 4, 2, 2).permute(0, 3, 2, 6, 4, 5, 7, 8, 1)
    out = c[..., 0, 0] | (c[..., 0, 1] << 2) | (c[..., 1, 0] << 4) | (c[..., 1, 1] << 6)
    return (out ^ _SIGNED).reshape(tiles, blocks, 32, 16)


def _from_fragments(packed: torch.Tensor) -> torch.Tensor:
    tiles, blocks = packed.shape[:2]
    p = (packed ^ _SIGNED).view(tiles, blocks, 8, 4, 4, 2, 2)  # tile, block, lane/4, lane%4, word, h, j/2
    pairs = torch.stack([(p >> shift) & 3 for shift in (0, 2, 4, 6)], dim=-1).view(tiles, blocks, 8, 4, 4, 2, 2, 2, 2)
    return pairs.permute(0, 8, 2, 1, 4, 5, 3, 6, 7).reshape(tiles * _TILE, blocks * _K_BLOCK)


def _to_quarters(codes: torch.Tensor, group: int) -> torch.Tensor:
    c = codes.view(codes.shape[0], -1, 4, group)
    out = c[:, :, 0] | (c[:, :, 1] << 2) | (c[:, :, 2] << 4) | (c[:, :, 3] << 6)
    return out.reshape(codes.shape[0], -1)


def _from_quarters(packed: torch.Tensor, group: int) -> torch.Tensor:
    p = packed.view(packed.shape[0], packed.shape[1] // group, group)
    return torch.stack([(p >> shift) & 3 for shift in (0, 2, 4, 6)], dim=2).flatten(1)
