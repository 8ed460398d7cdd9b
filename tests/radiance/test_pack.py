"""pack: every bit that goes in comes out, in any order of chunks, and padding stays padding."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from radiance import pack
from radiance.errors import UnsupportedHead

LAYOUTS = ("fragment", "quarter")


def random_rows(n: int, k: int, group: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    g = torch.Generator().manual_seed(seed)
    codes = torch.randint(0, 4, (n, k), generator=g, dtype=torch.uint8)
    steps = torch.rand(n, -(-k // group), generator=g) + 0.5
    return codes, steps


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("k", [64, 65, 576, 640, 768, 1280, 2880, 5376])
def test_round_trip_of_the_ks_the_original_got_wrong(layout: str, k: int) -> None:
    f = pack.Format(layout, 130, k, pack.default_group(k))  # type: ignore[arg-type]
    codes, steps = random_rows(f.n, k, f.group, k)
    steps = pack.snap(f, steps)
    p = pack.allocate(f, "cpu")
    pack.write_rows(p, 64, codes[64:], steps[64:])  # out of order on purpose
    pack.write_rows(p, 0, codes[:64], steps[:64])
    got_codes, got_steps = pack.read_rows(p, 0, f.n)
    assert torch.equal(got_codes, codes)
    assert torch.equal(got_steps, steps)
    assert sum(t.numel() * t.element_size() for t in (p.codes, p.half_steps, p.units)) == f.bytes


@settings(max_examples=60, deadline=None)
@given(
    layout=st.sampled_from(LAYOUTS),
    n=st.integers(1, 200),
    k=st.integers(64, 700),
    group=st.sampled_from((64, 128)),
    data=st.data(),
)
def test_any_window_reads_what_was_written(layout: str, n: int, k: int, group: int, data: st.DataObject) -> None:
    f = pack.Format(layout, n, k, group)  # type: ignore[arg-type]
    codes, steps = random_rows(n, k, group, n * 1000 + k)
    steps = pack.snap(f, steps)
    p = pack.allocate(f, "cpu")
    pack.write_rows(p, 0, codes, steps)
    row0 = data.draw(st.integers(0, n))
    rows = data.draw(st.integers(0, n - row0))
    got_codes, got_steps = pack.read_rows(p, row0, rows)
    assert torch.equal(got_codes, codes[row0 : row0 + rows])
    assert torch.equal(got_steps, steps[row0 : row0 + rows])


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_chunk_touches_only_its_own_rows(layout: str) -> None:
    f = pack.Format(layout, 192, 256, 64)  # type: ignore[arg-type]
    p = pack.allocate(f, "cpu")
    p.codes.fill_(0xA5)
    p.half_steps.fill_(7)
    p.units.fill_(3)
    codes, steps = random_rows(64, 256, 64, 1)
    before = pack.read_rows(p, 0, 64), pack.read_rows(p, 128, 64)
    pack.write_rows(p, 64, codes, steps)
    after = pack.read_rows(p, 0, 64), pack.read_rows(p, 128, 64)
    for old, new in zip(before, after, strict=True):
        assert torch.equal(old[0], new[0])
        assert torch.equal(old[1], new[1])


def test_fragment_order_is_the_tensor_cores() -> None:
    """One code at a time against the rule in the docstring, so that reader and writer cannot be wrong together."""
    f = pack.Format("fragment", 64, 256, 128)
    for row, column in ((0, 0), (9, 1), (7, 22), (31, 127), (50, 200)):
        codes = torch.full((64, 256), 2, dtype=torch.uint8)  # stored as 0
        codes[row, column] = 1  # stored as 3: minus one in two bits
        p = pack.allocate(f, "cpu")
        pack.write_rows(p, 0, codes, torch.ones(64, 2))
        tile, r, line = row // 16, row % 16 // 8, row % 8
        block, word, h, quad, j = column // 128, column % 128 // 32, column % 32 // 16, column % 16 // 4, column % 4
        words = p.codes.view(torch.int32)[tile, block, line * 4 + quad]
        assert int(words[word]) & 0xFFFFFFFF == 3 << (16 * h + 4 * j + 2 * r)
        assert int((p.codes != 0).sum()) == 1


def test_half_steps_of_a_fragment_are_whole_multiples() -> None:
    f = pack.Format("fragment", 64, 640, 64)
    steps = torch.rand(64, 10) * torch.logspace(-6, 6, 64)[:, None]
    snapped = pack.snap(f, steps)
    assert torch.equal(pack.snap(f, snapped), snapped)
    assert bool(((snapped - steps).abs() <= steps.amax(1, keepdim=True) / 42 * 1.01).all())
    p = pack.allocate(f, "cpu")
    pack.write_rows(p, 0, torch.zeros(64, 640, dtype=torch.uint8), steps)
    assert int(p.half_steps.min()) == 1
    assert int(p.half_steps.max()) == pack.MAX_FACTOR
    row, group = 29, 6
    factor = p.half_steps[row // 16, group // 4, row % 8, group % 4, row % 16 // 8]
    assert float(factor * p.units[row]) == float(snapped[row, group])
    assert not pack.snap(f, torch.zeros(64, 10)).any()


def test_padding_rows_weigh_nothing() -> None:
    for layout in LAYOUTS:
        f = pack.Format(layout, 70, 200, 64)  # type: ignore[arg-type]
        p = pack.allocate(f, "cpu")
        codes, steps = random_rows(70, 200, 64, 3)
        pack.write_rows(p, 0, codes, steps)
        assert f.n_padded == 128
        weights = p.units if layout == "fragment" else p.half_steps.t().float().abs().sum(1)
        assert bool((weights[:70] > 0).all())
        assert not weights[70:].any()


@pytest.mark.parametrize(
    "change",
    [{"layout": "columns"}, {"k": 63}, {"n": 0}, {"group": 32}, {"version": 99}],
    ids=lambda c: next(iter(c)),
)
def test_formats_no_kernel_reads_are_refused_by_name(change: dict[str, object]) -> None:
    fields: dict[str, object] = {"layout": "quarter", "n": 64, "k": 64, "group": 64} | change
    value = next(iter(change.values()))
    with pytest.raises(UnsupportedHead, match=str(value)):
        pack.Format(**fields)  # type: ignore[arg-type]


def test_bad_chunks_are_refused_with_both_values() -> None:
    p = pack.allocate(pack.Format("quarter", 200, 64, 64), "cpu")
    codes, steps = random_rows(64, 64, 64, 0)
    with pytest.raises(ValueError, match=r"rows 10\.\.74 of 200"):
        pack.write_rows(p, 10, codes, steps)
    with pytest.raises(ValueError, match=r"rows 0\.\.63 of 200"):
        pack.write_rows(p, 0, codes[:63], steps[:63])
    with pytest.raises(ValueError, match=r"rows 192\.\.256 of 200"):
        pack.write_rows(p, 192, codes, steps)
    with pytest.raises(ValueError, match=r"want uint8 \(64, 64\)"):
        pack.write_rows(p, 0, codes[:, :32], steps)
    with pytest.raises(ValueError, match=r"rows 199\.\.201"):
        pack.read_rows(p, 199, 2)


def test_bits_per_weight() -> None:
    assert pack.Format("quarter", 124160, 5120, 128).bits_per_weight == 2.125
    assert pack.Format("quarter", 124160, 5120, 128).bytes == 168_857_600
    assert pack.Format("fragment", 124160, 5120, 128).bits_per_weight == 2.06875
    assert pack.Format("fragment", 124160, 5120, 128).bytes == 124160 * (1280 + 40 + 4)
