"""What `radiance accuracy` counts and what it compares, on heads made for one question each."""

from __future__ import annotations

import pytest
import torch

from radiance import recall, reference, schemes
from radiance.source import Source

K = 64


def test_a_head_may_have_more_rows_than_tokens() -> None:
    weight = torch.zeros(64, K)
    weight[:40] = torch.randn(40, K) - 5  # every token scores lower than the padding
    true = recall.truth(Source(weight), torch.ones(3, K).bfloat16(), 40)
    assert (true.top < 40).all()


@pytest.mark.parametrize(
    ("n", "n_valid", "r"), [(1000, 1000, 4), (1000, 901, 15), (640, 640, 10), (700, 65, 60), (64, 3, 2)]
)
def test_select_through_block_maxima_is_select(n: int, n_valid: int, r: int) -> None:
    torch.manual_seed(n + r)
    for levels in (2, 5, 1000):  # two levels: nothing but ties
        values = torch.randint(-levels, levels, (20, n)).bfloat16()
        values[:, ::7] = -torch.inf
        assert torch.equal(recall.select(values, r, n_valid), reference.select(values, r, n_valid))


def fixed(values: torch.Tensor) -> schemes.Built:
    """A head that gives these coarse values, whatever x is."""
    turn = schemes.Unturned(K, K, 1, torch.ones(K), torch.ones(K))
    return schemes.Built(turn, torch.zeros(K), lambda a, b: torch.zeros(b, K), lambda x: values[: len(x)], 2.0, 0.0)


def test_each_miss_is_classed() -> None:
    """Row 0 hits; row 1 has a twin of the winner; row 2 gets nothing near it."""
    weight = torch.zeros(200, K)
    weight[torch.arange(3) + 10, torch.arange(3)] = 4.0
    weight[150] = weight[11]
    x = torch.eye(3, K).bfloat16()
    coarse = torch.zeros(3, 200).bfloat16()
    coarse[0, 10] = coarse[1, 150] = coarse[2, 77] = 9.0
    source = Source(weight)
    found = recall.measure(fixed(coarse), source, x, recall.truth(source, x, 200), 200, [1, 64])
    assert found.inside == [1, 3]
    assert found.agreed == [1, 3]
    assert found.tied == [1, 0]
    assert found.missed == [1, 0]


def test_a_complete_set_of_16_lies_within_the_coarse_64() -> None:
    weight = torch.zeros(300, K)
    weight[:, 0] = torch.linspace(3, 1, 300)
    source, x = Source(weight), torch.eye(1, K).bfloat16()
    true = recall.truth(source, x, 300)
    coarse = torch.zeros(1, 300).bfloat16()
    coarse[0, :15], coarse[0, 100:148] = 9.0, 8.0
    coarse[0, 15] = 5.0
    assert recall.measure(fixed(coarse), source, x, true, 300, [1]).complete_top_k == 1
    coarse[0, 148:160] = 8.0  # pushes id 15 out
    assert recall.measure(fixed(coarse), source, x, true, 300, [1, 200]).complete_top_k == 0


def test_counts_do_not_depend_on_the_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    source, x = Source(torch.randn(400, K).bfloat16()), torch.randn(50, K).bfloat16()
    built = schemes.build("symmetric", source, 400)
    whole = recall.measure(built, source, x, recall.truth(source, x, 400), 400, [1, 8])
    monkeypatch.setattr(recall, "ROW_BYTES", 7 * 2 * 400)
    assert recall.measure(built, source, x, recall.truth(source, x, 400), 400, [1, 8]) == whole
    assert 0 < whole.inside[0] < whole.inside[1] == whole.agreed[1] <= 50


# -- schemes -----------------------------------------------------------------------------------------------------------


def test_minmax_by_hand() -> None:
    rows = torch.tensor([[-1.0, 0.0, 1.0, 2.0], [-0.625, 0.0, 1.0, 2.375], [0.0, 0.0, 0.0, 0.0]])
    code, step, zero = schemes.minmax(rows)
    assert step.tolist() == [1.0, 1.0, 0.0]
    assert zero.tolist() == [1.0, 1.0, 0.0]
    assert code.tolist() == [[0, 1, 2, 3], [0, 1, 2, 3], [0, 0, 0, 0]]


@pytest.mark.parametrize("name", [name for name in schemes.SCHEMES if name != "calibrated"])
def test_coarse_values_and_errors_are_those_of_the_decoded_head(name: str) -> None:
    torch.manual_seed(0)
    source = Source((torch.randn(500, K) * torch.linspace(0.3, 3, K) + 2).bfloat16())
    x = torch.randn(20, K).bfloat16()
    built = schemes.build(name, source, 500)
    wanted = built.rotation.rotate_x(x) @ built.decode(0, 500).T
    assert torch.allclose(built.coarse(x).float(), wanted, atol=0.05 * float(wanted.abs().max()))
    weight, logit = recall.errors(built, source, x, 500)
    exact = x.float() @ (source.rows(0, 500) - built.mean).T
    off = built.rotation.rotate_x(x) @ built.decode(0, 500).T - exact
    off, exact = off - off.mean(1, keepdim=True), exact - exact.mean(1, keepdim=True)
    assert logit == pytest.approx(float(off.norm() / exact.norm()), rel=0.01)
    assert 0.05 < weight < 0.6


def test_parts_leave_less_error_one_by_one() -> None:
    torch.manual_seed(0)
    source = Source((torch.randn(2000, 2 * K) + 2).bfloat16())
    x = torch.randn(64, 2 * K).bfloat16()
    error = {}
    for name in ("minmax", "symmetric", "mean"):
        error[name] = recall.errors(schemes.build(name, source, 2000), source, x, 2000)[0]
    assert error["mean"] < error["symmetric"]
    assert error["mean"] < error["minmax"]
