"""The quantiser on a CUDA device: its rounding kernel against plain torch, and its memory at full head size."""

from __future__ import annotations

import pytest
import torch

from radiance import pack, quantise, reference
from radiance.source import Source

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")]


@pytest.mark.parametrize(("rows", "k"), [(1000, 5120), (700, 576), (65, 100), (3, 64)])
def test_the_kernel_rounds_as_torch_does(rows: int, k: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Column after column: PARTS = the group's width makes the torch version do the same."""
    generator = torch.Generator(device="cuda").manual_seed(0)
    group = pack.default_group(k)
    width = min(group, k)
    weight = torch.randn(rows, k, generator=generator, device="cuda")
    goal = weight[:, :width] + 0.1 * torch.randn(rows, width, generator=generator, device="cuda")
    inside = (torch.randn(width, width, generator=generator, device="cuda") * 0.2).triu(1)
    steps = torch.rand(rows, -(-k // group), generator=generator, device="cuda") + 0.2
    steps[0] = 0
    monkeypatch.setattr(quantise, "PARTS", width)
    codes, errors = quantise._round_group(weight[:, :width], goal, steps[:, 0], inside)
    got = torch.full((rows, k), 77, dtype=torch.uint8, device="cuda")
    turned = weight.clone()
    quantise._round_group_cuda(turned, goal, steps, 0, slice(0, width), inside, got)
    assert (got[:, width:] == 77).all()
    assert torch.equal(turned[:, width:], weight[:, width:])
    assert (got[:, :width] <= 3).all()
    assert torch.equal(turned[0, :width], weight[0, :width])  # its half-step is 0; its codes mean nothing
    same = (got[:, :width] == codes.to(torch.uint8))[1:]
    assert same.float().mean() > 0.999  # a sum that ends at a threshold may fall either way, and carry on
    whole = same.all(dim=1)
    assert torch.allclose(turned[1:][whole, :width], errors[1:][whole], atol=1e-3)


def test_recall_is_that_of_the_reference() -> None:
    torch.manual_seed(0)
    weight = torch.randn(6000, 1280).bfloat16()
    x = torch.randn(512, 1280).bfloat16()
    truth = (x.float() @ weight.float().T).argmax(1)
    shares = []
    for device in ("cpu", "cuda"):
        done = quantise.quantise(Source(weight.to(device)), 6000, "fragment")
        moved = pack.Packed(
            done.packed.format, *(t.cpu() for t in (done.packed.codes, done.packed.half_steps, done.packed.units))
        )
        turn = quantise.rotation.to(done.plan.rotation, torch.device("cpu"))
        ids = reference.select(reference.coarse(moved, turn, x), 8, 6000)
        shares.append(float((ids == truth[:, None]).any(1).float().mean()))
    assert shares[1] > shares[0] - 0.03


def test_memory_at_full_head_size() -> None:
    """At most 256 MiB beyond the packed copy while quantising 248320 x 5120, and nothing of it is kept."""
    n, k = 248320, 5120
    source = Source(torch.randn(n, k, device="cuda", dtype=torch.bfloat16))
    quantise.quantise(Source(source.weight[:4096]), 4096, "fragment")  # loads cuBLAS, cuSOLVER and the kernel
    torch.cuda.empty_cache()
    held, reserved = torch.cuda.memory_allocated(), torch.cuda.memory_reserved()
    done = quantise.quantise(source, n, "fragment")
    assert done.peak_bytes <= 256 << 20
    assert (
        torch.cuda.memory_allocated() - held - done.packed_bytes < 4 << 20
    )  # what rounds up to the allocator's blocks
    assert torch.cuda.memory_reserved() - reserved - done.packed_bytes < 64 << 20
