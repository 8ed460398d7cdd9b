"""The schemes that `radiance accuracy` compares: from the original asymmetric min/max, part by part, to what ships.

Only for measurements. All but the first are quantise.py itself with parts left out, so the table shows what a part buys.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import torch

from radiance import feedback, pack, quantise, reference, rotation
from radiance.rotation import Rotation
from radiance.source import Source


@dataclass
class Built:
    """A quantised head. `decode(start, rows)`: fp32 [rows, k], turned and without `mean`; `coarse(x)`: bf16 [m, n].

    `bits`: a weight, without padding; `padding`: bits a weight that padding adds; `seconds`: quantising and packing.
    """

    rotation: Rotation
    mean: torch.Tensor
    decode: Callable[[int, int], torch.Tensor]
    coarse: Callable[[torch.Tensor], torch.Tensor]
    bits: float
    padding: float
    seconds: float = 0.0


Build = Callable[[Source, int, torch.Tensor | None], Built]


class Unturned(Rotation):
    """No rotation."""

    def _apply(self, x: torch.Tensor) -> torch.Tensor:
        return x


def build(name: str, source: Source, n_valid: int, hidden: torch.Tensor | None = None) -> Built:
    """One of SCHEMES. `hidden` [p, k]: only `calibrated` looks at it, and needs it."""
    begin = time.monotonic()
    with torch.no_grad():
        built = SCHEMES[name][1](source, n_valid, hidden)
    if source.weight.device.type == "cuda":
        torch.cuda.synchronize(source.weight.device)
    built.seconds = time.monotonic() - begin
    return built


def asymmetric(source: Source, n_valid: int, hidden: torch.Tensor | None) -> Built:
    """The original: S = (hi - lo) / 3, z = round(-lo / S) in 0..3, weight = S (v - z); S and z are bf16. x stays as it is:
    the original multiplied in bf16."""
    group, k, where = pack.default_group(source.k), source.k, source.weight.device
    codes = torch.empty(source.n, k, dtype=torch.uint8, device=where)
    steps = torch.empty(source.n, -(-k // group), device=where)
    zeros = torch.empty_like(steps)
    for start in range(0, source.n, quantise.chunk_rows(k)):
        part = slice(start, min(start + quantise.chunk_rows(k), source.n))
        rows = source.rows(part.start, part.stop)
        for index in range(steps.shape[1]):
            front = slice(index * group, min((index + 1) * group, k))
            codes[part, front], steps[part, index], zeros[part, index] = minmax(rows[:, front])

    def decode(start: int, rows: int) -> torch.Tensor:
        part = slice(start, start + rows)
        step, zero = (t[part].repeat_interleave(group, 1)[:, :k] for t in (steps, zeros))
        return step * (codes[part].float() - zero)

    def coarse(x: torch.Tensor) -> torch.Tensor:
        return product(x.float(), decode, source.n)

    return Built(_unturned(source), torch.zeros(k, device=where), decode, coarse, 2 + 32 * steps.shape[1] / k, 0.0)


def minmax(rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """One group fp32 [c, group] -> codes uint8 [c, group], S (a bf16 value) and z, fp32 [c]."""
    low, high = rows.amin(1), rows.amax(1)
    step = ((high - low) / 3).bfloat16().float()
    inverse = torch.where(step > 0, 1 / step, 0.0)
    zero = (-low * inverse).round().clamp(0, 3)
    code = (rows * inverse[:, None] + zero[:, None]).round().clamp(0, 3)
    return code.to(torch.uint8), step, zero


def symmetric(source: Source, n_valid: int, hidden: torch.Tensor | None) -> Built:
    """Four levels around zero, each weight to the nearest; no mean taken off, no rotation."""
    return _plain(source, _unturned(source), torch.zeros(source.k, device=source.weight.device))


def mean_removed(source: Source, n_valid: int, hidden: torch.Tensor | None) -> Built:
    """The same after the mean row, fp32 [k], is taken off."""
    return _plain(source, _unturned(source), feedback.moments(source.rows, n_valid)[0])


def rotated(source: Source, n_valid: int, hidden: torch.Tensor | None) -> Built:
    """The same, and the hidden axis turned."""
    turn = rotation.to(rotation.make(source.k), source.weight.device)
    return _plain(source, turn, feedback.moments(source.rows, n_valid)[0])


def scaled(source: Source, n_valid: int, hidden: torch.Tensor | None) -> Built:
    """The same, and each column scaled by how loud it is before it is turned."""
    mean, gram, _ = feedback.moments(source.rows, n_valid)
    turn = rotation.make(source.k, feedback.loudness(gram))
    return _plain(source, rotation.to(turn, source.weight.device), mean)


def quarter(source: Source, n_valid: int, hidden: torch.Tensor | None) -> Built:
    """What ships for the portable kernels: error feedback, guessed from the head's own rows."""
    return shipped(source, n_valid, "quarter", None)


def fragment(source: Source, n_valid: int, hidden: torch.Tensor | None) -> Built:
    """What ships for NVIDIA's tensor cores; its half-steps are whole multiples of a row's unit."""
    return shipped(source, n_valid, "fragment", None)


def calibrated(source: Source, n_valid: int, hidden: torch.Tensor | None) -> Built:
    """What ships, with `hidden` [p, k] instead of the guess. Raises ValueError without it."""
    if hidden is None:
        raise ValueError("scheme 'calibrated' needs hidden states (schemes.build)")
    return shipped(source, n_valid, "quarter", hidden)


def shipped(source: Source, n_valid: int, layout: pack.Layout, hidden: torch.Tensor | None) -> Built:
    """The product: quantise.quantise and reference.coarse."""
    done = quantise.quantise(source, n_valid, layout, hidden)
    return _packed(done.packed, done.plan.rotation, done.plan.mean)


#: name -> (its line in the table, how it is made)
SCHEMES: dict[str, tuple[str, Build]] = {
    "minmax": ("original asymmetric min/max", asymmetric),
    "symmetric": ("symmetric, nearest", symmetric),
    "mean": ("+ mean row removed", mean_removed),
    "rotation": ("+ rotation", rotated),
    "column": ("+ column scale", scaled),
    "quarter": ("+ error feedback, ships: quarter", quarter),
    "fragment": ("  the same, ships: fragment", fragment),
    "calibrated": ("+ states of other text (quarter)", calibrated),
}


def product(x: torch.Tensor, decode: Callable[[int, int], torch.Tensor], n: int) -> torch.Tensor:
    """x [m, k] times all n decoded rows, chunk by chunk, as reference.coarse does it: bf16 [m, n]."""
    out = torch.empty(len(x), n, dtype=torch.bfloat16, device=x.device)
    for start in range(0, n, reference.CHUNK_ROWS):
        rows = min(reference.CHUNK_ROWS, n - start)
        out[:, start : start + rows] = x @ decode(start, rows).T
    return out


def _unturned(source: Source) -> Rotation:
    one = torch.ones(source.k, device=source.weight.device)
    return Unturned(source.k, source.k, 1, one, one)


def _plain(source: Source, turn: Rotation, mean: torch.Tensor) -> Built:
    """Nearest rounding with least-squares steps: quantise.py without feedback."""
    plan = quantise.Plan(turn, mean, pack.default_group(source.k), None)
    packed = pack.allocate(pack.Format("quarter", source.n, source.k, plan.group), source.weight.device)
    step = quantise.chunk_rows(source.k)
    for start in range(0, source.n, step):
        turned = quantise.turn_rows(source, start, min(start + step, source.n), plan)
        pack.write_rows(packed, start, *quantise.quantise_rows(turned, plan, packed.format))
    return _packed(packed, turn, mean)


def _packed(packed: pack.Packed, turn: Rotation, mean: torch.Tensor) -> Built:
    f = packed.format
    return Built(
        turn,
        mean,
        lambda start, rows: reference.decode(packed, start, rows),
        lambda x: reference.coarse(packed, turn, x),
        f.bits_per_weight,
        8 * f.bytes / (f.n * f.k) - f.bits_per_weight,
    )
