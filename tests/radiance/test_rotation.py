from __future__ import annotations

import pytest
import torch

from radiance import rotation

SIZES = [64, 65, 100, 576, 640, 768, 896, 1280, 2048, 2880, 5120, 5376, 7168]


@pytest.mark.parametrize("k", SIZES)
def test_products_do_not_move(k: int) -> None:
    torch.manual_seed(0)
    turn = rotation.make(k, column=torch.rand(k) + 0.5)
    x, w = torch.randn(3, k), torch.randn(5, k)
    assert torch.allclose(turn.rotate_x(x) @ turn.rotate_w(w).T, x @ w.T, atol=2e-3 * k**0.5 / 8)


@pytest.mark.parametrize("k", [k for k in SIZES if k not in (65, 100)])
def test_one_hot_spreads_over_all_columns(k: int) -> None:
    """Without outliers: every column of R has entries of +-1/sqrt(k). What makes it better than a block rotation."""
    turn = rotation.make(k)
    x = torch.zeros(2, k)
    x[0, 0], x[1, k - 1] = 1.0, 1.0
    assert torch.allclose(turn.rotate_x(x).abs(), torch.full((2, k), k**-0.5), rtol=1e-4)


@pytest.mark.parametrize("order", [1, 2, 4, 12, 20, 28, 36, 60, 84, 104, 180])
def test_hadamard(order: int) -> None:
    matrix = rotation.hadamard(order)
    assert matrix is not None
    h = torch.tensor(matrix, dtype=torch.float32)
    assert set(h.unique().tolist()) <= {-1.0, 1.0}
    assert torch.equal(h @ h.T, order * torch.eye(order))


@pytest.mark.parametrize("order", [3, 6, 92, 10])
def test_orders_that_are_not_known_here(order: int) -> None:
    assert rotation.hadamard(order) is None


def test_same_seed_same_rotation() -> None:
    assert torch.equal(rotation.make(576).x_scale, rotation.make(576).x_scale)
    assert not torch.equal(rotation.make(576, seed=1).x_scale, rotation.make(576).x_scale)


def test_to_moves_every_tensor() -> None:
    moved = rotation.to(rotation.make(64), torch.device("meta"))
    assert moved.x_scale.is_meta
    assert moved.w_scale.is_meta
