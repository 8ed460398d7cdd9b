"""The rotation of the hidden axis that makes two bits rank well: a Hadamard transform with random signs.

A draft row x and every row of the head are turned by the same orthogonal R, so their product does not move:
x . w == (R x) . (R w). Turned rows have no outlier columns and look Gaussian, which is what four levels fit best.
R = (H_a kron H_b) / sqrt(k) * diag(signs) with k = a * b, b a power of two: b log2 b additions for the fast part and a
additions an element for the dense part (k = 5120: a = 20, b = 256; k = 576: a = 36, b = 16). Two small factors reach
the recall of a dense random rotation (tests/bench/results/accuracy-*.json).

`column` divides the columns of x and multiplies those of the head (or the reverse): error goes where x is small.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import torch


@dataclass(frozen=True)
class Rotation:
    """R for one hidden size. `x_scale` fp32 [k] is signs/column, `w_scale` fp32 [k] is signs*column."""

    k: int
    a: int
    b: int
    x_scale: torch.Tensor
    w_scale: torch.Tensor

    def rotate_x(self, x: torch.Tensor) -> torch.Tensor:
        """[m, k] any float -> fp32 [m, k]."""
        return self._apply(x.float() * self.x_scale)

    def rotate_w(self, w: torch.Tensor) -> torch.Tensor:
        """fp32 [rows, k] -> fp32 [rows, k]; the caller chunks rows."""
        return self._apply(w * self.w_scale)

    @property
    def norm(self) -> float:
        """What the unnormalised sums are multiplied by so that R is orthogonal."""
        return float((self.k if hadamard(self.a) else self.b) ** -0.5)

    def _apply(self, x: torch.Tensor) -> torch.Tensor:
        """Three small dense products instead of log2 b butterflies: on a GPU each butterfly is several launches."""
        rows = x.shape[0]
        low = 1 << (self.b.bit_length() - 1) // 2
        high = self.b // low
        y = x.reshape(rows * self.a, high, low) @ _dense(low, x.device)
        y = (_dense(high, x.device) @ y).view(rows, self.a, self.b)
        if self.a > 1 and hadamard(self.a):
            y = _dense(self.a, x.device) @ y
        return (y * self.norm).reshape(rows, self.k)


def make(k: int, column: torch.Tensor | None = None, seed: int = 0x5EED) -> Rotation:
    """The rotation for hidden size k >= 1. `column`: positive fp32 [k]; None means 1. Same seed, same signs, anywhere."""
    a, b = factor(k)
    generator = torch.Generator().manual_seed(seed)
    signs = torch.randint(0, 2, (k,), generator=generator).float() * 2 - 1
    column = torch.ones(k) if column is None else column.float().cpu()
    return Rotation(k, a, b, signs / column, signs * column)


def to(rotation: Rotation, device: torch.device) -> Rotation:
    return Rotation(rotation.k, rotation.a, rotation.b, rotation.x_scale.to(device), rotation.w_scale.to(device))


_constants: dict[tuple[str, int, torch.device], tuple[torch.Tensor, Callable[[], torch.Tensor]]] = {}


def constant(name: str, order: int, device: torch.device, make: Callable[[], torch.Tensor]) -> torch.Tensor:
    """A matrix [rows, columns] that depends on nothing but its name and order, made on the host, once for each device and
    before any capture."""
    key = (name, order, device)
    if key not in _constants:
        _constants[key] = (make().to(device), make)
    return _constants[key][0]


def refill(device: torch.device) -> None:
    """Write all constants of a device again, in place: what an engine allocated while loading is gone after a deep sleep,
    and captured graphs hold the addresses."""
    for (_, _, where), (tensor, make) in _constants.items():
        if where == device:
            tensor.copy_(make())


def _dense(order: int, device: torch.device) -> torch.Tensor:
    """H as fp32 [order, order]: Sylvester's for a power of two (the one of the fast transform), else Paley's."""

    def make() -> torch.Tensor:
        if order & (order - 1):
            return torch.tensor(hadamard(order), dtype=torch.float32)
        matrix = torch.ones(1, 1)
        while len(matrix) < order:
            matrix = torch.cat((torch.cat((matrix, matrix), 1), torch.cat((matrix, -matrix), 1)))
        return matrix

    return constant("dense", order, device, make)


@lru_cache
def factor(k: int) -> tuple[int, int]:
    """k = a * b with b a power of two and the smallest a of a known Hadamard order; else a = the odd part."""
    odd, b = k, 1
    while odd % 2 == 0:
        odd, b = odd // 2, b * 2
    a = odd
    while b >= 1:
        if hadamard(a):
            return a, b
        if b == 1:
            break
        a, b = a * 2, b // 2
    b = k // odd
    return odd, b


@lru_cache
def hadamard(order: int) -> tuple[tuple[int, ...], ...] | None:
    """A Hadamard matrix of 1, 2 or a Paley order (q + 1, or 2(q + 1), q prime), rows of +-1; None if unknown here."""
    if order == 1:
        return ((1,),)
    if order == 2:
        return ((1, 1), (1, -1))
    if order % 4:
        return None
    if _prime(order - 1) and (order - 1) % 4 == 3:
        return _paley_one(order - 1)
    q = order // 2 - 1
    if _prime(q) and q % 4 == 1:
        return _paley_two(q)
    return None


def _prime(q: int) -> bool:
    return q > 1 and all(q % d for d in range(2, int(q**0.5) + 1))


def _jacobsthal(q: int) -> list[list[int]]:
    squares = {i * i % q for i in range(1, q)}
    chi = [0] + [1 if i in squares else -1 for i in range(1, q)]
    return [[chi[(i - j) % q] for j in range(q)] for i in range(q)]


def _paley_one(q: int) -> tuple[tuple[int, ...], ...]:
    core = _jacobsthal(q)
    rows = [[1] * (q + 1)]
    rows += [[-1] + [core[i][j] + (i == j) for j in range(q)] for i in range(q)]
    return tuple(map(tuple, rows))


def _paley_two(q: int) -> tuple[tuple[int, ...], ...]:
    core = _jacobsthal(q)
    c = [[0] + [1] * q] + [[1] + core[i] for i in range(q)]  # symmetric conference matrix
    size = q + 1
    rows = []
    for i in range(size):
        top, bottom = [], []
        for j in range(size):
            one = int(i == j)
            top += [c[i][j] + one, c[i][j] - one]
            bottom += [c[i][j] - one, -c[i][j] - one]
        rows += [top, bottom]
    return tuple(map(tuple, rows))
