"""shortlist: the whole path on the CPU against brute force, and what it refuses."""

from __future__ import annotations

import pytest
import torch

from radiance import coarse, ledger, pack, reference, rotation, shortlist
from radiance.source import Source

N, K = 500, 192


@pytest.fixture(scope="module")
def head() -> tuple[pack.Packed, rotation.Rotation, Source]:
    f = pack.Format("quarter", N, K, 64)
    p, rot = pack.allocate(f, "cpu"), rotation.make(K)
    torch.manual_seed(5)
    weight = torch.randn(N, K)
    turned = rot.rotate_w(weight)
    steps = turned.view(N, -1, 64).pow(2).mean(2).sqrt() * 0.498
    codes = (turned / (2 * steps.repeat_interleave(64, 1)) + 2).floor().clamp(0, 3).to(torch.uint8)
    pack.write_rows(p, 0, codes, steps)
    return p, rot, Source(weight)


def test_winners_are_the_exact_argmax_of_the_candidates(head: tuple[pack.Packed, rotation.Rotation, Source]) -> None:
    p, rot, source = head
    x = torch.randn(40, K)
    counters = ledger.make(torch.device("cpu"))
    got, value = shortlist.top_tokens(p, rot, source, x, 64, N, counters=counters)
    truth = x @ source.weight.T
    assert (got == truth.argmax(1)).float().mean() > 0.95
    torch.testing.assert_close(value, truth.gather(1, got[:, None])[:, 0])
    first = reference.select(reference.coarse(p, rot, x), 1, N)[:, 0]
    assert counters.words.tolist() == [1, 40, int((first != got).sum())] + [0] * (ledger.SIZE)
    assert counters.words[ledger.RESCUED] > 0
    ids, exact = shortlist.candidates(p, rot, source, x, 64, N)
    assert torch.equal(ids[:, 0], first)
    torch.testing.assert_close(exact, truth.gather(1, ids))


def test_padding_rows_are_never_candidates(head: tuple[pack.Packed, rotation.Rotation, Source]) -> None:
    p, rot, source = head
    ids, exact = shortlist.candidates(p, rot, source, torch.randn(3, K), 64, 10)
    assert torch.equal(ids[:, :10].sort(1).values, torch.arange(10).expand(3, 10))
    assert bool((ids[:, 10:] == -1).all())
    assert bool(exact[:, 10:].isneginf().all())
    best, _ = shortlist.top_tokens(p, rot, source, torch.randn(3, K), 64, 10)
    assert bool(((best >= 0) & (best < 10)).all())


def test_select_goes_through_more_rows_than_a_scratch_holds(
    head: tuple[pack.Packed, rotation.Rotation, Source],
) -> None:
    p, rot, source = head
    x = torch.randn(300, K)
    whole = shortlist.select(coarse.coarse(p, rot, x), 8, N)
    ids, _ = shortlist.candidates(p, rot, source, x, 8, N)
    assert torch.equal(ids, whole.long())


def test_no_rows(head: tuple[pack.Packed, rotation.Rotation, Source]) -> None:
    p, rot, source = head
    got, value = shortlist.top_tokens(p, rot, source, torch.empty(0, K), 32, N)
    assert got.shape == value.shape == (0,)
    assert shortlist.select(coarse.coarse(p, rot, torch.empty(0, K)), 32, N).shape == (0, 32)


@pytest.mark.parametrize(("r", "n_valid"), [(0, N), (1025, N), (8, 0), (8, N + 1)])
def test_bad_sizes_are_refused_with_both_values(
    head: tuple[pack.Packed, rotation.Rotation, Source], r: int, n_valid: int
) -> None:
    p, rot, source = head
    with pytest.raises(ValueError, match=f"r={r}, n_valid={n_valid}"):
        shortlist.top_tokens(p, rot, source, torch.randn(1, K), r, n_valid)


def test_warm_runs_every_width(
    head: tuple[pack.Packed, rotation.Rotation, Source], monkeypatch: pytest.MonkeyPatch
) -> None:
    p, rot, source = head
    seen: list[int] = []
    monkeypatch.setattr(shortlist, "top_tokens", lambda p, r, s, x, *a, **k: seen.append(x.shape[0]))
    shortlist.warm(p, rot, source, 8, N, torch.bfloat16, 40)
    assert seen == [1, 9, 17, 33, 40]
