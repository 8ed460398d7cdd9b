"""Blocked inverse and Cholesky against LAPACK in fp64, at sizes below, at and across the block size."""

from __future__ import annotations

import pytest
import torch

from radiance import spd


def matrix(k: int, condition: float) -> torch.Tensor:
    """fp64 [k, k] symmetric, eigenvalues from 1 / condition to 1."""
    generator = torch.Generator().manual_seed(k)
    basis = torch.linalg.qr(torch.randn(k, k, generator=generator, dtype=torch.float64)).Q
    return (basis * torch.logspace(0, -torch.tensor(condition).log10().item(), k, dtype=torch.float64)) @ basis.T


@pytest.mark.parametrize("k", [1, 64, spd.BLOCK, spd.BLOCK + 1, 3 * spd.BLOCK - 17])
@pytest.mark.parametrize("condition", [1.0, 1e3])
def test_inverse_and_factor(k: int, condition: float) -> None:
    exact = matrix(k, condition)
    worked = exact.float()
    assert spd.inverse_(worked) is worked
    error = (worked.double() @ exact - torch.eye(k)).abs().max()
    assert error < 2e-6 * condition
    factor = spd.cholesky_(exact.float()).tril().double()
    assert (factor @ factor.T - exact).abs().max() < 2e-6
    assert (factor.diagonal() > 0).all()


@pytest.mark.parametrize("solve", [spd.inverse_, spd.cholesky_])
@pytest.mark.parametrize("at", [3, spd.BLOCK + 3])
def test_what_is_not_positive_definite_is_an_error(solve, at: int) -> None:  # type: ignore[no-untyped-def]
    wrong = torch.eye(spd.BLOCK + 10)
    wrong[at, at] = -1
    with pytest.raises(torch.linalg.LinAlgError):
        solve(wrong)


def test_a_steep_spectrum_keeps_the_digits_that_lapack_keeps() -> None:
    """64 strong directions and little else, as in a head of low rank."""
    k = 1024
    basis = torch.linalg.qr(torch.randn(k, k, generator=torch.Generator().manual_seed(0), dtype=torch.float64)).Q
    values = torch.full((k,), 6e-5, dtype=torch.float64)
    values[:64] = 1
    exact = (basis * values) @ basis.T
    truth = torch.linalg.inv(exact)

    def error(found: torch.Tensor) -> float:
        return float((found.double() - truth).norm() / truth.norm())

    lapack = torch.cholesky_inverse(torch.linalg.cholesky(exact.float()))
    assert error(spd.inverse_(exact.float())) < 3 * error(lapack)
