from __future__ import annotations

import pytest
import torch

from radiance import pack, quantise, reference
from radiance.errors import UnsupportedHead
from radiance.source import Source


def relative_error(source: Source, done: quantise.Quantised) -> float:
    """Of the decoded head against the rotated, mean-free rows it stands for."""
    rows = done.plan.rotation.rotate_w(source.rows(0, source.n) - done.plan.mean)
    decoded = reference.decode(done.packed, 0, source.n)
    return float((decoded - rows).norm() / rows.norm())


@pytest.mark.parametrize("k", [64, 65, 100, 576, 768, 1280])
@pytest.mark.parametrize("layout", ["quarter", "fragment"])
def test_gaussian_error_is_that_of_four_levels(k: int, layout: pack.Layout) -> None:
    """A Gaussian at -3, -1, 1, 3 steps has a relative error of 0.345 at best; 0.37 leaves room for the group's spread."""
    torch.manual_seed(0)
    source = Source(torch.randn(300, k).bfloat16())
    assert relative_error(source, quantise.quantise(source, 300, layout)) < 0.37


@pytest.mark.parametrize("layout", ["quarter", "fragment"])
def test_codes_are_chosen_for_the_half_steps_that_are_held(layout: pack.Layout) -> None:
    """A format rounds half-steps its own way; codes for others than those would be the wrong ones."""
    torch.manual_seed(0)
    source = Source(torch.randn(130, 576).bfloat16())
    fmt = pack.Format(layout, 130, 576, 64)
    plan = quantise.prepare(source, 130)
    codes, steps = quantise.quantise_rows(quantise.turn_rows(source, 0, 130, plan), plan, fmt)
    assert torch.equal(pack.snap(fmt, steps), steps)
    packed = pack.allocate(fmt, "cpu")
    pack.write_rows(packed, 0, codes, steps)
    held_codes, held_steps = pack.read_rows(packed, 0, 130)
    assert torch.equal(held_codes, codes)
    assert torch.equal(held_steps, steps)
    plan.follow = None  # without feedback each code is simply the nearest
    codes, steps = quantise.quantise_rows(quantise.turn_rows(source, 0, 130, plan), plan, fmt)
    turned = plan.rotation.rotate_w(source.rows(0, 130) - plan.mean)
    spread = steps.repeat_interleave(64, 1)
    nearest = (turned / spread * 0.5 + 1.5).round().clamp(0, 3)
    assert (codes == nearest).float().mean() > 0.9999


def test_result_does_not_depend_on_the_chunk(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    source = Source(torch.randn(400, 576).bfloat16())
    whole = quantise.quantise(source, 400, "quarter").packed
    monkeypatch.setattr(quantise, "CHUNK_BYTES", 64 * 576 * 4)
    assert quantise.chunk_rows(576) == 64
    chunked = quantise.quantise(source, 400, "quarter").packed
    # Sums of another shape may round a code elsewhere, and feedback carries that on along its row.
    assert (whole.codes == chunked.codes).float().mean() > 0.98


def test_mean_row_is_of_real_rows_only() -> None:
    weight = torch.ones(128, 64)
    weight[100:] = 1e6
    plan = quantise.prepare(Source(weight), 100)
    assert torch.equal(plan.mean, torch.ones(64))


def test_zero_and_constant_rows_stay_finite() -> None:
    weight = torch.zeros(64, 64)
    weight[1] = 5.0
    done = quantise.quantise(Source(weight), 64, "quarter")
    assert reference.decode(done.packed, 0, 64).isfinite().all()


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_heads_that_are_not_finite_are_refused(bad: float) -> None:
    weight = torch.ones(64, 64)
    weight[63, 5] = bad
    with pytest.raises(UnsupportedHead, match="NaN or infinite"):
        quantise.quantise(Source(weight), 64, "quarter")


def test_e4m3_nan_bytes_are_refused() -> None:
    weight = torch.ones(64, 64).to(torch.float8_e4m3fn)
    weight.view(torch.uint8)[3, 3] = 0x7F
    with pytest.raises(UnsupportedHead, match="NaN"):
        quantise.quantise(Source(weight, torch.ones(64)), 64, "quarter")


def test_packed_bytes_are_what_is_kept() -> None:
    source = Source(torch.randn(128, 1024).bfloat16())
    done = quantise.quantise(source, 128, "quarter")
    kept = done.packed.codes.numel() + 2 * done.packed.half_steps.numel()
    assert done.packed_bytes == kept
    assert done.packed_bytes < source.weight.numel() * 2 / 7
