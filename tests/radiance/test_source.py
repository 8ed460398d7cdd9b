from __future__ import annotations

import pytest
import torch

from radiance import source as source_module
from radiance.errors import UnsupportedHead
from radiance.source import Source, digest


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_floats_decode_exactly(dtype: torch.dtype) -> None:
    weight = torch.randn(7, 64).to(dtype)
    source = Source(weight)
    assert torch.equal(source.rows(2, 5), weight[2:5].float())
    ids = torch.tensor([[6, 0], [3, 3]])
    assert torch.equal(source.gather(ids), weight[ids].float())


def e4m3(byte: int) -> float:
    """OCP FP8 E4M3 read from the bits, as the standard has it; independent of torch's conversion."""
    sign, exponent, mantissa = -1.0 if byte & 0x80 else 1.0, (byte >> 3) & 15, byte & 7
    if exponent == 0:
        return sign * mantissa * 2.0**-9
    return sign * (1 + mantissa / 8) * 2.0 ** (exponent - 7)


def test_all_finite_e4m3_bytes_in_the_transposed_view() -> None:
    finite = [b for b in range(256) if b & 0x7F != 0x7F]
    codes = torch.tensor(finite[:252], dtype=torch.uint8).view(4, 63)
    held = codes.T.contiguous().view(torch.float8_e4m3fn)  # [k, n] in memory, as vLLM keeps it
    scale = torch.tensor([1.0, 0.5, 3.0, 0.001])
    source = Source(held.T, scale)
    assert not source.weight.is_contiguous()
    expected = torch.tensor([[e4m3(int(b)) for b in row] for row in codes]) * scale[:, None]
    assert torch.equal(source.rows(0, 4), expected)
    assert torch.equal(source.gather(torch.tensor([3, 1])), expected[[3, 1]])
    last = Source(torch.tensor([finite[252:]], dtype=torch.uint8).view(torch.float8_e4m3fn), torch.ones(1))
    assert last.rows(0, 1).tolist() == [[e4m3(b) for b in finite[252:]]]


def test_sample_holds_bytes_and_scales() -> None:
    weight = torch.randn(4, 64).to(torch.float8_e4m3fn)
    scale = torch.ones(4)
    ids = torch.tensor([0, 2])
    before = Source(weight, scale).sample(ids)
    assert torch.equal(before, Source(weight, scale).sample(ids))
    changed = scale.clone()
    changed[2] = 2.0
    assert not torch.equal(before, Source(weight, changed).sample(ids))


@pytest.mark.parametrize(
    ("weight", "scale", "reason"),
    [
        (torch.zeros(4, 64, dtype=torch.int8), None, "dtype"),
        (torch.zeros(4, 64).to(torch.float8_e4m3fn), None, "fp8_scale"),
        (torch.zeros(4, 64).to(torch.float8_e4m3fn), torch.ones(3), "fp8_scale"),
        (torch.zeros(4, 64).to(torch.float8_e4m3fnuz), torch.ones(4), "dtype"),
        (torch.zeros(4, 8, 8), None, "shape"),
    ],
)
def test_what_is_not_supported_is_named(weight: torch.Tensor, scale: torch.Tensor | None, reason: str) -> None:
    with pytest.raises(UnsupportedHead) as caught:
        Source(weight, scale)
    assert caught.value.reason == reason


def test_a_digest_sees_every_byte_and_where_it_lies(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source_module, "_DIGEST_WORDS", 8)  # several chunks
    weight = torch.randn(6, 32).bfloat16()
    before = digest(weight)
    assert digest(weight.clone()) == before
    for changed in (weight.roll(1, 0), weight.flip(1), weight.roll(8, 1), torch.zeros_like(weight)):
        assert digest(changed) != before
    one = weight.clone()
    one.view(torch.uint8)[5, 63] ^= 1
    assert digest(one) != before
    assert digest(weight, one) != digest(one, weight)
    odd = torch.randn(3, 5).half()  # 30 bytes
    assert digest(odd) != digest(odd.roll(1, 0))
    shifted = torch.randn(65).bfloat16()[1:]  # 128 bytes, two behind a multiple of four
    assert digest(shifted) != digest(shifted.flip(0))
    strided = torch.randn(4, 8, 6).transpose(0, 2)[1]  # contiguous in neither order
    assert digest(strided) != digest(strided.flip(0))
    transposed = torch.randn(32, 6).to(torch.float8_e4m3fn).T
    assert digest(transposed) == digest(transposed.T.contiguous())
