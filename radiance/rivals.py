"""Other ways to make a draft head cheaper, timed beside ours: microseconds of a call with argmax, None if not to be had here.

None of them rescores its candidates, so their answers are those of the rounded head.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from radiance.measure import timed
from radiance.source import Source


def fp8(sources: list[Source], xs: list[torch.Tensor]) -> float | None:
    """Microseconds of e4m3 x e4m3 with row scales (torch._scaled_mm) + argmax; None where the GPU has none of it."""
    if torch.cuda.get_device_capability() < (8, 9) or sources[0].k % 16 or sources[0].n % 16:
        return None
    m, n = xs[0].shape[0], sources[0].n
    up = -(-m // 16) * 16
    e4m3 = [source.weight.to(torch.float8_e4m3fn) for source in sources]
    x8 = torch.nn.functional.pad(xs[0], (0, 0, 0, up - m)).to(torch.float8_e4m3fn)
    sx, sw = torch.ones(up, 1, device=x8.device), torch.ones(1, n, device=x8.device)

    def call(w: torch.Tensor) -> torch.Tensor:
        return torch._scaled_mm(x8, w.t(), scale_a=sx, scale_b=sw, out_dtype=torch.bfloat16)[:m].argmax(1)

    return timed([partial(call, w) for w in e4m3])


def humming(bits: int, source: Source, dtype: torch.dtype) -> Callable[[list[torch.Tensor]], float] | None:
    """vLLM's low-bit GEMM library (package humming-kernels) at 4 bits with bf16 x [m, k], or at 2 bits with int8 x, in groups
    of 128 or 64. Loads the weights once; call the result with the x of each m. Its kernels are compiled at first use."""
    try:
        from humming.layer import HummingLayer
    except ImportError:
        return None
    layer: Any = HummingLayer(
        shape_n=source.n, shape_k=source.k, torch_dtype=dtype,
        weight_config={"dtype": f"int{bits}", "group_size": 128 if source.k % 128 == 0 else 64},
        input_config={"dtype": "int8"} if bits == 2 else None,
    ).to(source.weight.device)  # fmt: skip
    layer.load_from_unquantized(source.weight)
    layer.transform()

    def call(x: torch.Tensor) -> torch.Tensor:
        return layer(x).argmax(1)  # type: ignore[no-any-return]

    return lambda xs: timed([partial(call, x) for x in xs])
