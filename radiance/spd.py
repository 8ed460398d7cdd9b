"""Inverse and Cholesky factor of a symmetric positive definite matrix, block by block, from matrix products alone.

torch's own go through cuSOLVER, which takes 98 MiB of GPU memory beside torch's allocator for the life of the process
(seen on an H200 with torch 2.11: memory that vLLM cannot give to the KV cache). Here only blocks of the diagonal are
factored, on the host in fp64; all else is `addmm`. In place, one [k, 256] panel or two beside the matrix.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

BLOCK = 256


def inverse_(matrix: torch.Tensor) -> torch.Tensor:
    """fp32 [k, k] -> its inverse, in place. Raises torch.linalg.LinAlgError if the matrix is not positive definite.

    Through the Cholesky factor: sweeping blocks of columns instead is shorter, but lost 7 to 40 times the digits on steep
    spectra and failed at a condition of 2e4 that this one bears.
    """
    cholesky_(matrix).tril_()
    for block in reversed(_blocks(len(matrix))):  # L -> its inverse
        corner = _on_host(matrix[block, block], _triangular_inverse)
        if block.stop < len(matrix):
            below = slice(block.stop, None)
            matrix[below, block] = (matrix[below, below] @ matrix[below, block] @ corner).neg_()
        matrix[block, block] = corner
    for block in _blocks(len(matrix)):  # L^-T L^-1: later blocks of rows need no earlier one
        rest, upto = slice(block.start, None), slice(0, block.stop)
        matrix[block, upto] = matrix[rest, block].T @ matrix[rest, upto]
        matrix[upto, block] = matrix[block, upto].T.clone()
    return matrix


def cholesky_(matrix: torch.Tensor) -> torch.Tensor:
    """fp32 [k, k] -> lower factor L with L L' = matrix, in place; what was above the diagonal is left there. Raises
    torch.linalg.LinAlgError if the matrix is not positive definite."""
    for block in _blocks(len(matrix)):
        factor = _on_host(matrix[block, block], torch.linalg.cholesky)
        matrix[block, block] = factor
        below = slice(block.stop, None)
        if block.stop < len(matrix):
            turned = _on_host(factor, _triangular_inverse)
            panel = matrix[below, block] @ turned.T
            matrix[below, block] = panel
            matrix[below, below].addmm_(panel, panel.T, alpha=-1)
    return matrix


def _blocks(k: int) -> list[slice]:
    return [slice(start, min(start + BLOCK, k)) for start in range(0, k, BLOCK)]


def _triangular_inverse(lower: torch.Tensor) -> torch.Tensor:
    inverse: torch.Tensor = torch.linalg.solve_triangular(lower, torch.eye(len(lower)).to(lower), upper=False)
    return inverse


def _on_host(block: torch.Tensor, solve: Callable[[torch.Tensor], torch.Tensor]) -> torch.Tensor:
    return solve(block.double().cpu()).to(block)
