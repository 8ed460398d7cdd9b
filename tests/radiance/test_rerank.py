"""rerank: exact values, the winner's rule, and the heads its kernel declines."""

from __future__ import annotations

import pytest
import torch

from radiance import ledger, rerank
from radiance.errors import UnsupportedHead
from radiance.source import Source


def test_values_and_minus_infinity_for_none() -> None:
    weight, x = torch.randn(30, 64).bfloat16(), torch.randn(2, 64).bfloat16()
    ids = torch.tensor([[3, -1, 29], [0, 0, -1]])
    got = rerank.rerank(Source(weight), x, ids)
    want = x.float() @ weight.float().T
    torch.testing.assert_close(got[0, [0, 2]], want[0, [3, 29]])
    assert got[0, 1] == got[1, 2] == -torch.inf


def test_e4m3_as_vllm_keeps_it() -> None:
    stored = torch.randn(64, 30).to(torch.float8_e4m3fn)  # [k, n], transposed
    scale = torch.rand(30) + 0.5
    x = torch.randn(1, 64)
    got = rerank.rerank(Source(stored.t(), scale), x, torch.tensor([[7, 8]]))
    want = x @ (stored.float() * scale)
    torch.testing.assert_close(got, want[:, 7:9])


def test_rounding_makes_ties_and_the_lowest_id_wins() -> None:
    weight = torch.zeros(4, 64)
    weight[:, 0] = torch.tensor([1.0, 256.4, 256.6, 2.0])
    x = torch.zeros(1, 64)
    x[0, 0] = 1
    ids = torch.tensor([[2, 1, 3]])
    assert rerank.best(Source(weight), x, ids)[0].tolist() == [2]
    got, value = rerank.best(Source(weight), x, ids, round_to=torch.bfloat16)  # steps of 2 at 256
    assert got.tolist() == [1]
    assert value.tolist() == [256.0]


def test_a_winner_other_than_the_first_candidate_is_counted() -> None:
    weight = torch.eye(64)
    x = torch.arange(64.0)[None]
    counters = ledger.make(torch.device("cpu"))
    rerank.best(Source(weight), x, torch.tensor([[5, 9]]), counters=counters)
    assert counters.words.tolist() == [1, 1, 1] + [0] * (ledger.SIZE)
    rerank.best(Source(weight), x, torch.tensor([[9, 5]]), counters=counters)
    assert counters.words.tolist() == [2, 2, 1] + [0] * (ledger.SIZE)


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        (Source(torch.zeros(64, 8).t()), "stride"),
        (Source(torch.zeros(8, 64).to(torch.float8_e4m3fn), torch.ones(8, dtype=torch.float64)), "fp8_scale"),
        (Source(torch.zeros(8, 64).to(torch.float8_e4m3fn), torch.ones(16)[::2]), "fp8_scale"),
    ],
    ids=["columns first", "scales in fp64", "scales apart"],
)
def test_layouts_the_kernel_cannot_read_are_declined_by_name(source: Source, reason: str) -> None:
    with pytest.raises(UnsupportedHead) as error:
        rerank.rerank_kernel(source, torch.zeros(1, 64), 1, torch.float32)
    assert error.value.reason == reason


def test_alignment_decides_the_width_of_loads(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []
    monkeypatch.setattr(
        rerank.build, "kernel", lambda stem, entry, defines, where, arch: seen.append(defines["VECTOR"])
    )
    monkeypatch.setattr(rerank.tuning, "device", lambda where: rerank.tuning.Device("fake", (9, 0), 1, 1))
    base = torch.zeros(8, 72, dtype=torch.bfloat16)
    for weight in (base[:, :64], base[:, 1:65], torch.zeros(8, 65, dtype=torch.bfloat16), torch.zeros(8, 64)):
        x = torch.zeros(1, weight.shape[1], dtype=torch.bfloat16)
        rerank.rerank_kernel(Source(weight), x, 1, torch.float32)
    assert seen == [8, 1, 1, 4]
