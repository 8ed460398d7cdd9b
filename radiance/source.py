"""The rows of a head as they lie in memory: bf16, fp16, fp32, or e4m3 with one scale a row. Nothing is copied.

vLLM keeps an FP8 head transposed ([k, n], column-major), so `weight` may be any strided view; `rows()` and `gather()`
hide that. Decoding is exact: every finite e4m3 value is an fp32 value.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch

from radiance.errors import UnsupportedHead

FLOATS = (torch.bfloat16, torch.float16, torch.float32)


#: words of a chunk of digest(), which widens one at a time
_DIGEST_WORDS = 1 << 20


def digest(*tensors: torch.Tensor) -> int:
    """A number that is another one if any of these bytes are, or lie elsewhere: each 32-bit word times an odd number that grows
    with its place, modulo 2^64. 24 MiB of temporaries; synchronises."""
    device = tensors[0].device
    places = torch.arange(1, 2 * _DIGEST_WORDS, 2, device=device)
    total = torch.zeros((), dtype=torch.int64, device=device)
    for tensor in tensors:
        for part in _in_order(tensor):
            aligned = part.nbytes % 4 == part.storage_offset() * part.itemsize % 4 == 0
            words = part.reshape(-1).view(torch.int32 if aligned else torch.uint8)
            for start in range(0, len(words), _DIGEST_WORDS):
                chunk = words[start : start + _DIGEST_WORDS]
                total = total * 3 + (chunk * places[: len(chunk)]).sum()
    return int(total)


def _in_order(tensor: torch.Tensor) -> Iterator[torch.Tensor]:
    """Contiguous tensors of the same bytes; an e4m3 head of vLLM's is [k, n] in memory."""
    if tensor.is_contiguous():
        yield tensor
    elif tensor.t().is_contiguous():
        yield tensor.t()
    else:
        for rows in torch.split(tensor, 1024):  # type: ignore[no-untyped-call]
            yield rows.contiguous()


@dataclass
class Source:
    """`weight` [n, k] (a view), `scale` fp32 [n] for e4m3 weights, else None. Raises UnsupportedHead by name."""

    weight: torch.Tensor
    scale: torch.Tensor | None = None

    def __post_init__(self) -> None:
        dtype = self.weight.dtype
        if self.weight.dim() != 2:
            raise UnsupportedHead("shape", f"a head must be [n, k], this one is {tuple(self.weight.shape)}")
        if dtype is torch.float8_e4m3fn:
            if self.scale is None or self.scale.numel() != self.n:
                given = "none" if self.scale is None else str(tuple(self.scale.shape))
                raise UnsupportedHead("fp8_scale", f"an e4m3 head needs one fp32 scale a row ({self.n}), found {given}")
        elif dtype not in FLOATS:
            raise UnsupportedHead(
                "dtype", f"head dtype {dtype} is not bf16, fp16, fp32 or float8_e4m3fn with row scales"
            )

    @property
    def n(self) -> int:
        return int(self.weight.shape[0])

    @property
    def k(self) -> int:
        return int(self.weight.shape[1])

    def rows(self, start: int, stop: int) -> torch.Tensor:
        """fp32 [stop - start, k], decoded. Raises UnsupportedHead if an e4m3 row holds NaN."""
        return self._decode(self.weight[start:stop], None if self.scale is None else self.scale[start:stop])

    def gather(self, ids: torch.Tensor) -> torch.Tensor:
        """fp32 [..., k] for int64 ids [...], decoded."""
        return self._decode(self.weight[ids], None if self.scale is None else self.scale[ids])

    def only(self, ids: torch.Tensor) -> Source:
        """A Source of some rows, int32 [count], in that order; decoded from this one's memory, nothing is copied."""
        return _Listed(self.weight, self.scale, ids.long().to(self.weight.device))

    def sample(self, ids: torch.Tensor) -> torch.Tensor:
        """The bytes of some rows as they lie in memory, for verify(): uint8, a copy."""
        rows = self.weight[ids].contiguous().view(torch.uint8)
        if self.scale is None:
            return rows
        scales = self.scale[ids].float().reshape(-1, 1).contiguous().view(torch.uint8)
        return torch.cat((rows, scales), dim=1)

    def digest(self) -> int:
        """Of all rows, as they lie in memory."""
        return digest(self.weight, *(() if self.scale is None else (self.scale,)))

    def _decode(self, weight: torch.Tensor, scale: torch.Tensor | None) -> torch.Tensor:
        values = weight.float()
        return values if scale is None else values * scale.float().reshape(*values.shape[:-1], 1)


@dataclass
class _Listed(Source):
    """Rows `ids` of the weight."""

    ids: torch.Tensor | None = None

    @property
    def n(self) -> int:
        return int(self.weight.shape[0]) if self.ids is None else len(self.ids)

    def __post_init__(self) -> None:
        pass  # checked where it was made from

    def rows(self, start: int, stop: int) -> torch.Tensor:
        assert self.ids is not None
        return super().gather(self.ids[start:stop])
