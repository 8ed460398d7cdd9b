"""Which errors of a head matter, and how later columns of a row answer for the errors of earlier ones.

A coarse logit is off by e . x, e the row's rounding error; what moves ranks is E[(e . x)^2] = e H e', H = E[x x']. Rounding
column after column, with later columns answering for the errors of earlier ones (GPTQ), turns the arithmetic mean of H's
spectrum into its geometric mean: the same bits and the same kernel, several times less error in the logits.

Without data H comes from the rows themselves. A trained head and its hidden states mirror each other: where rows vary much,
states vary little. So with G = cov(rows): H ~ G^-1, sharpened by its own diagonal. G is shrunk (Ledoit-Wolf) by what
sampling alone explains, so a random head gives H ~ I and plain rounding. G itself as H would predict several times more
loss than plain rounding. With hidden states H is their second moment plus a fifth of the above; 256 states already help.

tests/bench/results/accuracy-*.json says what each part buys on real hidden states, docs/accuracy.md what was tried and lost.
Peak memory: two fp32 [k, k].
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from radiance import spd
from radiance.rotation import Rotation

#: (start, stop) -> rows of the head, fp32 [stop - start, k]
Rows = Callable[[int, int], torch.Tensor]

PRIOR = 0.2  # share of the data-free Hessian beside that of hidden states
DAMP = 0.03  # of the mean diagonal
SAMPLED_ROWS = 65536  # rows that make G: 3.4 TFLOP at k = 5120
RUN = 512  # rows read at a time


def moments(rows: Rows, n: int) -> tuple[torch.Tensor, torch.Tensor, float]:
    """Mean row fp32 [k] (of all n rows), covariance of rows [k, k] scaled to mean diagonal 1 (of SAMPLED_ROWS evenly
    spread), and the share of the covariance's structure that sampling noise explains (0..1).

    Two sweeps, the mean first: the covariance of a far-off cloud cancels in fp32.
    """
    total = rows(0, 1).new_zeros((), dtype=torch.float64)
    for start in range(0, n, RUN):
        total = total + rows(start, min(start + RUN, n)).sum(0, dtype=torch.float64)
    mean = (total / n).float()
    share = min(1.0, SAMPLED_ROWS / n)
    sweep = [(start, min(n, start + max(1, round(RUN * share)))) for start in range(0, n, RUN)]
    taken = sum(stop - start for start, stop in sweep)
    gram = torch.zeros(len(mean), len(mean), device=mean.device)
    fourth = torch.zeros((), dtype=torch.float64, device=mean.device)
    for start, stop in sweep:
        part = rows(start, stop) - mean
        gram.addmm_(part.T, part, alpha=1 / taken)
        fourth += part.square().sum(1).double().square().sum() / taken
    unit = gram.diagonal().mean().clamp_min(1e-30)
    gram /= unit
    square = torch.linalg.vector_norm(gram).square()
    noise = (fourth / unit.double().square() - square) / taken
    return mean, gram, float((noise / (square - len(mean)).clamp_min(1e-30)).clamp(0, 1))


def loudness(gram: torch.Tensor) -> torch.Tensor:
    """Column scale fp32 [k] that makes all columns of the head equally loud: after feedback the loss is
    mean(w_j^2 c_j^2) / geomean(c_j^2)."""
    return gram.diagonal().clamp(1e-4, 1e4).rsqrt()


def matrix(gram: torch.Tensor, shrink: float, rotation: Rotation, hidden: torch.Tensor | None) -> torch.Tensor:
    """fp16 [k, k], strictly upper, in the rotated basis: the goal of column j is w_j + sum over i < j of (w_i - q_i)
    matrix[i, j]. Overwrites `gram`. `hidden` [p, k]: inputs of the head, if there are any.

    H = V V' with V upper; the loss e H e' is then a sum over columns if later ones follow V / diag(V) - 1.
    """
    gram.mul_(1 - shrink)
    gram.diagonal().add_(shrink + 1e-3)
    hessian = _mirror(gram)
    if hidden is not None:
        hessian.mul_(PRIOR)
        _add_states(hessian, hidden)
    hessian = _turned(hessian, rotation).flip(0, 1)
    hessian.diagonal().add_(DAMP * hessian.diagonal().mean())
    factor = spd.cholesky_(hessian)
    return factor.div_(factor.diagonal().clone()).tril_(-1).half().flip(0, 1)


def _mirror(gram: torch.Tensor) -> torch.Tensor:
    """The data-free Hessian, mean diagonal 1: S (G^-1 + diag(G^-1)) S, S = diag(G^-1)^(1/2). Overwrites `gram`."""
    hessian = spd.inverse_(gram)
    sharp = hessian.diagonal().sqrt()
    hessian.diagonal().mul_(2)
    hessian.mul_(sharp).mul_(sharp[:, None])
    return hessian.div_(hessian.diagonal().mean())


def _add_states(hessian: torch.Tensor, hidden: torch.Tensor) -> None:
    """Add E[x x'] of hidden states [p, k], scaled to mean diagonal 1."""
    parts = [hidden[start : start + 1024] for start in range(0, len(hidden), 1024)]
    energy = sum(float(part.float().square().sum()) for part in parts) / len(hessian)
    for part in parts:
        states = part.to(hessian.device).float()
        hessian.addmm_(states.T, states, alpha=1 / max(energy, 1e-30))


def _turned(hessian: torch.Tensor, rotation: Rotation) -> torch.Tensor:
    """H in the basis of rotated states, slice by slice."""
    for _ in range(2):
        for start in range(0, len(hessian), 256):
            hessian[start : start + 256] = rotation.rotate_x(hessian[start : start + 256])
        hessian = hessian.T.contiguous()
    return hessian
