from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from radiance import quantise, reference
from radiance.source import Source


def brute(values: list[float], r: int, n_valid: int) -> list[int]:
    order = sorted(range(n_valid), key=lambda i: (-values[i], i))[:r]
    return order + [-1] * (r - len(order))


@given(
    st.lists(st.sampled_from([-torch.inf, -2.0, -1.0, -0.0, 0.0, 0.5, 3.0]), min_size=1, max_size=40),
    st.integers(1, 50),
    st.data(),
)
def test_select_is_the_exact_top_r_with_ties(values: list[float], r: int, data: st.DataObject) -> None:
    n_valid = data.draw(st.integers(1, len(values)))
    got = reference.select(torch.tensor([values]).bfloat16(), r, n_valid)
    assert got.tolist() == [brute(values, r, n_valid)]


def test_select_orders_nan_last() -> None:
    values = torch.tensor([[float("nan"), 1.0, -5.0]]).bfloat16()
    assert reference.select(values, 2, 3).tolist() == [[1, 2]]


def test_rerank_is_the_original_product() -> None:
    torch.manual_seed(0)
    source = Source(torch.randn(50, 64).bfloat16())
    x = torch.randn(3, 64).bfloat16()
    ids = torch.tensor([[4, 49, -1], [0, 0, 1], [7, 8, 9]])
    got = reference.rerank(source, x, ids)
    full = x.double() @ source.weight.double().T
    expected = full.gather(1, ids.clamp_min(0)).masked_fill(ids < 0, -torch.inf)
    assert torch.allclose(got.double(), expected, rtol=1e-5)


def test_rerank_in_pieces_is_the_same(monkeypatch) -> None:
    torch.manual_seed(0)
    source = Source(torch.randn(50, 64).bfloat16())
    x, ids = torch.randn(9, 64), torch.randint(0, 50, (9, 8))
    whole = reference.rerank(source, x, ids)
    monkeypatch.setattr(reference, "GATHER_BYTES", 1)
    assert torch.allclose(reference.rerank(source, x, ids), whole, rtol=1e-5)


def test_best_takes_the_lowest_id_of_a_tie_and_never_an_absent_one() -> None:
    ids = torch.tensor([[9, 3, 5], [4, -1, -1], [2, 7, -1]])
    values = torch.tensor([[1.0, 2.0, 2.0], [-torch.inf, -torch.inf, -torch.inf], [0.0, 0.0, -torch.inf]])
    winners, top = reference.best(ids, values)
    assert winners.tolist() == [3, 4, 2]
    assert top.tolist() == [2.0, -torch.inf, 0.0]


def test_coarse_follows_the_exact_logits() -> None:
    """Correlation of coarse with exact logits (up to the mean row's share) on a Gaussian head: what two bits can give."""
    torch.manual_seed(0)
    source = Source(torch.randn(500, 576).bfloat16())
    done = quantise.quantise(source, 500, "quarter")
    x = torch.randn(16, 576).bfloat16()
    got = reference.coarse(done.packed, done.plan.rotation, x).float()
    exact = x.float() @ (source.weight.float() - done.plan.mean).T
    assert torch.corrcoef(torch.stack((got.flatten(), exact.flatten())))[0, 1] > 0.92


def test_an_all_zero_row_gives_zeros() -> None:
    source = Source(torch.randn(64, 64))
    done = quantise.quantise(source, 64, "quarter")
    assert not reference.coarse(done.packed, done.plan.rotation, torch.zeros(1, 64)).any()
