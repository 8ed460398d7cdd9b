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
    """fp32 [k, k] -> its inverse, in place, by sweeping blocks of columns. Raises torch.linalg.LinAlgError if a block is
    not positive definite."""
    for block in _blocks(len(matrix)):
        column = matrix[:, block].clone()
        pivot = _on_host(matrix[block, block], lambda a: torch.cholesky_inverse(torch.linalg.cholesky(a)))
        scaled = column @ pivot
        matrix.addmm_(scaled, column.T, alpha=-1)
        matrix[:, block] = scaled
        matrix[block] = scaled.T
        matrix[block, block] = -pivot
    return matrix.neg_()


def cholesky_(matrix: torch.Tensor) -> torch.Tensor:
    """fp32 [k, k] -> lower factor L with L L' = matrix, in place; what was above the diagonal is left there. Raises
    torch.linalg.LinAlgError if the matrix is not positive definite."""
    for block in _blocks(len(matrix)):
        factor = _on_host(matrix[block, block], torch.linalg.cholesky)
        matrix[block, block] = factor
        below = slice(block.stop, None)
        if block.stop < len(matrix):
            turned = _on_host(factor, lambda a: torch.linalg.solve_triangular(a, torch.eye(len(a)).to(a), upper=False))
            panel = matrix[below, block] @ turned.T
            matrix[below, block] = panel
            matrix[below, below].addmm_(panel, panel.T, alpha=-1)
    return matrix


def _blocks(k: int) -> list[slice]:
    return [slice(start, min(start + BLOCK, k)) for start in range(0, k, BLOCK)]


def _on_host(block: torch.Tensor, solve: Callable[[torch.Tensor], torch.Tensor]) -> torch.Tensor:
    return solve(block.double().cpu()).to(block)
