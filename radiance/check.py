"""The sampled check of RADIANCE_SHADOW_SAMPLE on a GPU: kernels/check.cu behind every call, in graphs too.

Of 1 in `every` calls one draft row is compared with the exact best of all rows of the head's own weight, read whole for
that (1.3 GB at 248320 x 2560: the call then takes as long as a stock one more). Other calls pay for an empty launch. The
host does nothing: no copy, no thread, no synchronisation; 24 bytes of device memory.
"""

from __future__ import annotations

import torch

from radiance import rerank, tuning
from radiance.errors import UnsupportedHead
from radiance.kernels import build
from radiance.ledger import Ledger, defines
from radiance.source import Source

THREADS = 512


def run(
    source: Source, x: torch.Tensor, ids: torch.Tensor, answer: rerank.Answer, ledger: Ledger, *, n_valid: int,
    round_to: torch.dtype, vocab: torch.Tensor | None,
) -> None:  # fmt: skip
    """After rerank of the same call: `ids` int32 [m, r] its candidates, `answer` its state. `n_valid`: rows that may be
    drafted, the first of the head or those of `vocab`."""
    where = ids.device
    device = tuning.device(where)
    shared = 4 * source.k
    if shared + 1024 > device.shared:
        raise UnsupportedHead(
            "k", f"k={source.k}: a row in fp32 does not fit in {device.shared} bytes of shared memory (check)"
        )
    x = x if x.stride(1) == 1 else x.contiguous()
    kernel = build.kernel("check", "check", rerank.weight_defines(source, x, round_to) | defines(), where, device.arch)
    args = (
        build.pointer(source.weight), build.long(source.weight.stride(0)), build.pointer(source.scale),
        build.pointer(x), build.long(x.stride(0)), build.pointer(vocab), build.integer(n_valid),
        build.integer(ids.shape[0]), build.pointer(ids), build.integer(ids.shape[1]), build.pointer(answer.best),
        build.pointer(ledger.state()), build.long(ledger.every), build.pointer(ledger.words),
    )  # fmt: skip
    build.launch(kernel, (device.processors * 2, 1), THREADS, shared, args, early=device.early_launch)
