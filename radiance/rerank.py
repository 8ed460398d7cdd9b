"""Host side of the exact rerank: logits of the candidates against the head's own weight, and the best of them.

Exact means: the weight decoded without loss, times the original x, summed in fp32. Nothing but the candidates' rows is
read, with 64-bit offsets.
"""

from __future__ import annotations

import torch

from radiance import tuning
from radiance.coarse import X_TYPES
from radiance.errors import UnsupportedHead
from radiance.kernels import build
from radiance.ledger import CALLS, RESCUED, Ledger, defines
from radiance.source import Source

THREADS = 128
W_TYPES = X_TYPES | {torch.float8_e4m3fn: 3}
ROUND = {torch.float32: 0, torch.bfloat16: 1, torch.float16: 2}


class Answer:
    """The winners of m draft rows: `ids` int64 [m], `values` fp32 [m]; `best` and `done` are the kernel's state,
    `call` int64 [2] what kernels/ledger.cuh says of a call: cleared means that nobody knows when it began."""

    def __init__(self, m: int, where: torch.device) -> None:
        self.best = torch.empty(m, dtype=torch.int64, device=where)
        self.done = torch.empty(m, dtype=torch.int32, device=where)
        self.call = torch.empty(2, dtype=torch.int64, device=where)
        self.ids = torch.empty(m, dtype=torch.int64, device=where)
        self.values = torch.empty(m, dtype=torch.float32, device=where)

    def clear(self) -> None:
        """What the CUDA rotate and select do on their way."""
        self.best.zero_()
        self.done.zero_()
        self.call.zero_()


def rerank(source: Source, x: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    """Exact logits fp32 [m, r] of ids int [m, r]; -inf where an id is -1."""
    return score(source, x, ids.int().contiguous(), _cleared(ids), rows=True)[1]


def best(source: Source, x: torch.Tensor, ids: torch.Tensor, *, round_to: torch.dtype = torch.float32,
         counters: Ledger | None = None, portable: bool = False) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
    """(ids int64 [m], exact logits fp32 [m]) of the best candidate of each row; ties to the lowest id.

    `ids` int [m, r], the best coarse candidate first; every row has at least one."""
    answer = Answer(ids.shape[0], ids.device) if portable else _cleared(ids)
    score(
        source, x, ids.int().contiguous(), answer, round_to=round_to, counters=counters, winners=True, portable=portable
    )
    return answer.ids, answer.values


def score(
    source: Source, x: torch.Tensor, ids: torch.Tensor, answer: Answer, *, round_to: torch.dtype = torch.float32,
    counters: Ledger | None = None, rows: bool = False, winners: bool = False, early: bool = False,
    portable: bool = False,
) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
    """One launch, two if portable. `ids` int32 [m, r], contiguous; `answer` with best and done cleared (select does it).

    rows: (ids int64 [m, r], logits fp32 [m, r]); else two empty tensors. winners: fills answer.ids and answer.values.
    early: x is older than the launch before this one (it is in the whole path), so it may be read while that one ends.
    portable: the kernels that run anywhere, whatever the GPU; they use none of the state in `answer`.
    """
    m, r = ids.shape
    where = ids.device
    shape = (m, r) if rows else (0, r)
    out_ids = torch.empty(shape, dtype=torch.int64, device=where)
    out_values = torch.empty(shape, dtype=torch.float32, device=where)
    if m == 0:
        return out_ids, out_values
    if where.type == "cpu":
        return _on_cpu(source, x, ids, answer, round_to, counters)
    x = x if x.stride(1) == 1 else x.contiguous()
    if portable or not has_cuda_kernels(where):
        from radiance.kernels import rerank_triton

        return rerank_triton.score(
            source, x, ids, answer, out_ids, out_values, round_to, None if counters is None else counters.words, rows
        )
    per_block = tuning.rerank_rows(m, r)
    kernel = rerank_kernel(source, x, per_block, round_to)
    words, state = (None, None) if counters is None else (counters.words, counters.state())
    args = (
        build.pointer(source.weight), build.long(source.weight.stride(0)), build.pointer(source.scale),
        build.pointer(x), build.long(x.stride(0)), build.pointer(ids), build.integer(r),
        build.pointer(out_ids if rows else None), build.pointer(out_values if rows else None),
        build.pointer(answer.best), build.pointer(answer.done),
        build.pointer(answer.ids if winners else None), build.pointer(answer.values if winners else None),
        build.pointer(words), build.pointer(answer.call), build.pointer(state),
    )  # fmt: skip
    grid = (-(-r // per_block), m)
    build.launch(kernel, grid, THREADS, 0, args, early=early and tuning.device(where).early_launch)
    return out_ids, out_values


def rerank_kernel(source: Source, x: torch.Tensor, per_block: int, round_to: torch.dtype) -> build.Kernel:
    """The kernel for these types. Raises UnsupportedHead for a weight whose rows are not contiguous."""
    weight = source.weight
    if weight.stride(1) != 1:
        raise UnsupportedHead(
            "stride", f"head of strides {tuple(weight.stride())}: rerank needs rows contiguous along k (rerank)"
        )
    if source.scale is not None and (source.scale.dtype is not torch.float32 or not source.scale.is_contiguous()):
        raise UnsupportedHead(
            "fp8_scale", f"row scales must be contiguous fp32, these are {source.scale.dtype} (rerank)"
        )
    kinds = weight_defines(source, x, round_to) | defines() | {"ROWS_PER_BLOCK": per_block}
    return build.kernel("rerank", "rerank", kinds, weight.device, tuning.device(weight.device).arch)


def weight_defines(source: Source, x: torch.Tensor, round_to: torch.dtype) -> dict[str, int | str]:
    """What kernels/weights.cuh is compiled with, and K, for x [m, k]."""
    weight = source.weight
    width = 16 // weight.element_size()
    apart = (
        weight.data_ptr() | weight.stride(0) * weight.element_size() | x.data_ptr() | x.stride(0) * x.element_size()
    ) % 16
    vector = width if apart == 0 and source.k % width == 0 else 1
    return {"K": source.k, "X_TYPE": X_TYPES[x.dtype], "W_TYPE": W_TYPES[weight.dtype], "VECTOR": vector,
            "ROUND": ROUND[round_to]}  # fmt: skip


def has_cuda_kernels(where: torch.device) -> bool:
    """An NVIDIA GPU of sm_80 or newer."""
    return torch.version.hip is None and tuning.device(where).capability >= (8, 0)


def _cleared(ids: torch.Tensor) -> Answer:
    answer = Answer(ids.shape[0], ids.device)
    answer.clear()
    return answer


def _on_cpu(source: Source, x: torch.Tensor, ids: torch.Tensor, answer: Answer, round_to: torch.dtype,
            counters: Ledger | None) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
    from radiance import reference

    wide = ids.long()
    values = reference.rerank(source, x, wide).to(round_to).float()
    answer.ids, answer.values = reference.best(wide, values)
    if counters is not None:
        rescued = int((answer.ids != wide[:, 0]).sum())
        counters.words[CALLS : RESCUED + 1] += torch.tensor([1, ids.shape[0], rescued])
    return wide, values
