"""Rows of a head -> 2-bit codes and one half-step per group, in bounded chunks.

value = s * (2v - 3), v in 0..3, s per group of 64 or 128 along the rotated hidden axis. What each step buys is measured on
real hidden states by `make accuracy`; the order:

1. the mean row of the head is taken off every row: it adds the same x . mean to every logit of a draft row, so no rank
   moves, and the rest is smaller;
2. column scale and rotation (rotation.py): every group then looks Gaussian;
3. per group, the half-step by least squares, rounded to what the storage format holds;
4. group by group, the codes, whose errors later columns make good (feedback.py).
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch

from radiance import feedback, pack, rotation, tuning
from radiance.errors import UnsupportedHead
from radiance.kernels import build
from radiance.source import Source, digest

#: fp32 bytes of one chunk of rows. Large, because a chunk costs hundreds of launches, whatever its rows
CHUNK_BYTES = 96 << 20
#: fp32 bytes of the rows whose temporaries (decoding, rotation, packing: a handful of copies) live at a time in a chunk
SLICE_BYTES = 12 << 20
#: in plain torch, columns rounded together do not correct each other: under 2 % of the loss for 7 of 8 launches saved
PARTS = 8
#: the best half-step of a Gaussian, in units of its rms; where the least-squares search begins
GAUSSIAN_STEP = 0.4979


@dataclass
class Plan:
    """What all rows share. `mean` fp32 [k] is taken off before rotating; `follow` fp16 [k, k] is feedback.matrix()."""

    rotation: rotation.Rotation
    mean: torch.Tensor
    group: int
    follow: torch.Tensor | None

    def overwrite(self, other: Plan) -> None:
        """Take over the other plan's values, into the tensors that are there: captured graphs hold their addresses."""
        self.mean.copy_(other.mean)
        self.rotation.x_scale.copy_(other.rotation.x_scale)
        self.rotation.w_scale.copy_(other.rotation.w_scale)


@dataclass
class Quantised:
    """The packed head and what it cost. `peak_bytes`: beyond the packed copy; measured on a GPU, estimated on a CPU."""

    packed: pack.Packed
    plan: Plan
    seconds: float
    packed_bytes: int
    peak_bytes: int

    def digest(self) -> int:
        """Of all that answers depend on. Synchronises."""
        packed, plan = self.packed, self.plan
        return digest(packed.codes, packed.half_steps, packed.units, plan.mean, plan.rotation.x_scale)


@contextmanager
def full_precision() -> Iterator[None]:
    """fp32 products in fp32, whatever the engine has set for its own (VLLM_FLOAT32_MATMUL_PRECISION)."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


def chunk_rows(k: int) -> int:
    """Rows of one chunk: a multiple of 64, at least 64."""
    return max(64, CHUNK_BYTES // (4 * k) // 64 * 64)


def slice_rows(k: int) -> int:
    """Rows of one slice of a chunk: a multiple of 64, at least 64."""
    return max(64, SLICE_BYTES // (4 * k) // 64 * 64)


def prepare(source: Source, n_valid: int, hidden: torch.Tensor | None = None) -> Plan:
    """The shared part. Padding rows (>= n_valid) do not count. `hidden` [p, k]: inputs of this head, for calibration.

    Peak: two fp32 [k, k] and a slice of rows. Raises UnsupportedHead if the head holds NaN or infinity.
    """
    mean, gram, shrink = feedback.moments(source.rows, n_valid)
    if not bool(mean.isfinite().all()):
        raise UnsupportedHead(
            "not_finite", f"the head [{source.n}, {source.k}] holds NaN or infinite weights; reload it"
        )
    turn = rotation.to(rotation.make(source.k, feedback.loudness(gram)), mean.device)
    return Plan(turn, mean, pack.default_group(source.k), feedback.matrix(gram, shrink, turn, hidden))


def turn_rows(source: Source, start: int, stop: int, plan: Plan) -> torch.Tensor:
    """fp32 [stop - start, k]: rows of the head, decoded, without the mean, rotated."""
    turned = torch.empty(stop - start, source.k, device=source.weight.device)
    slice_ = slice_rows(source.k)
    for at in range(start, stop, slice_):
        to = min(at + slice_, stop)
        turned[at - start : to - start] = plan.rotation.rotate_w(source.rows(at, to) - plan.mean)
    return turned


def quantise_rows(turned: torch.Tensor, plan: Plan, fmt: pack.Format) -> tuple[torch.Tensor, torch.Tensor]:
    """turn_rows() [c, k] -> codes uint8 [c, k] and half-steps fp32 [c, ceil(k / group)], as `fmt` holds them.

    Overwrites `turned` with the errors w - q. A row's result does not depend on its chunk, but for the order of summation
    inside a GEMM.
    """
    count, k = turned.shape
    codes = torch.empty(count, k, dtype=torch.uint8, device=turned.device)
    fronts = [slice(start, min(start + plan.group, k)) for start in range(0, k, plan.group)]
    steps = pack.snap(fmt, _half_steps(turned, plan.group))
    for index, front in enumerate(fronts):
        goal = turned[:, front]
        if plan.follow is not None and index:
            goal = torch.addmm(goal, turned[:, : front.start], plan.follow[: front.start, front].float())
        inside = None if plan.follow is None else plan.follow[front, front].float()
        if turned.is_cuda and inside is not None and tuning.device(turned.device).capability >= (8, 0):
            _round_group_cuda(turned, goal, steps, index, front, inside, codes)
        else:
            codes[:, front], turned[:, front] = _round_group(turned[:, front], goal, steps[:, index], inside)
    return codes, steps


def _half_steps(turned: torch.Tensor, group: int) -> torch.Tensor:
    """[c, k] -> fp32 [c, ceil(k / group)], slice by slice, all whole groups at once."""
    count, k = turned.shape
    whole = k // group * group
    parts = []
    slice_ = slice_rows(k)
    for at in range(0, count, slice_):
        part = turned[at : at + slice_]
        found = [_half_step(part[:, :whole].reshape(len(part), -1, group))]
        if whole < k:
            found.append(_half_step(part[:, whole:].unsqueeze(1)))
        parts.append(torch.cat(found, dim=1))
    return torch.cat(parts)


def _half_step(goal: torch.Tensor) -> torch.Tensor:
    """[c, groups, width] -> [c, groups]: two rounds of least squares from the best step of a Gaussian."""
    step = goal.square().mean(2).sqrt_().mul_(GAUSSIAN_STEP)
    for _ in range(2):
        level = _code(goal / step.clamp_min(1e-30)[..., None]).mul_(2).sub_(3)
        square = level.square().sum(2)
        step = level.mul_(goal).sum(2).div_(square).clamp_min_(0)
    return step


def _code(scaled: torch.Tensor) -> torch.Tensor:
    """The nearest of 0..3 to w / s, w / s = 2v - 3."""
    return scaled.mul(0.5).add_(1.5).round_().clamp_(0, 3)


def _round_group(
    rows: torch.Tensor, goal: torch.Tensor, step: torch.Tensor, inside: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Codes [c, group] (floats) and errors w - q of one group, PARTS of its columns at a time."""
    group = rows.shape[1]
    width = group if inside is None else max(1, group // PARTS)
    inverse = torch.where(step > 0, 1 / step, 0.0)
    raised = (rows.T * inverse).add_(3)  # w / s + 3, [group, c]
    wanted = goal.T * inverse
    code = torch.empty_like(wanted)
    for start in range(0, group, width):
        now, later = slice(start, start + width), slice(start + width, group)
        code[now] = _code(wanted[now])
        raised[now].sub_(code[now], alpha=2)  # w / s - (2v - 3)
        if inside is not None and start + width < group:
            wanted[later].addmm_(inside[now, later].T, raised[now])
    # A half-step of 0 holds nothing of its group: the error is the weight.
    return code.T, torch.where(step > 0, raised * step, rows.T).T


def _round_group_cuda(
    turned: torch.Tensor, goal: torch.Tensor, steps: torch.Tensor, index: int, front: slice, inside: torch.Tensor,
    codes: torch.Tensor,
) -> None:  # fmt: skip
    """_round_group() in one launch, each column answering for all before it; writes into `turned` and `codes`."""
    width, where = goal.shape[1], turned.device
    kernel = build.kernel("round", "round_group", {"WIDTH": width}, where, tuning.device(where).arch)
    goal, inside = goal.contiguous(), inside.contiguous()
    args = (
        build.pointer(goal), build.pointer(turned[:, front]), build.pointer(steps[:, index]), build.pointer(inside),
        build.pointer(codes[:, front]), build.integer(len(turned)), build.long(turned.stride(0)),
        build.integer(steps.stride(0)),
    )  # fmt: skip
    shared = 4 * width * -(-width // 32) * 32
    build.launch(kernel, (3 * tuning.device(where).processors, 1), 256, shared, args)


def quantise(
    source: Source, n_valid: int, layout: pack.Layout, hidden: torch.Tensor | None = None, *, measure: bool = True,
    into: Quantised | None = None,
) -> Quantised:  # fmt: skip
    """Pack a whole head. Temporaries are one chunk or two [k, k] matrices and a few slices, whatever n;
    all are given back. `measure` resets torch's peak counter: not while vLLM itself is measuring with it. `into`: overwrite
    that packed copy of a head of the same shape, whose addresses captured graphs hold, instead of allocating one."""
    begin = time.monotonic()
    device = source.weight.device
    on_gpu = device.type == "cuda" and measure
    before = 0
    if on_gpu:
        torch.cuda.synchronize(device)
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
    with torch.no_grad(), full_precision():
        plan = prepare(source, n_valid, hidden)
        fmt = pack.Format(layout, source.n, source.k, plan.group)
        packed = pack.allocate(fmt, device) if into is None else pack.cleared(into.packed)
        step, slice_ = chunk_rows(source.k), slice_rows(source.k)
        for start in range(0, source.n, step):
            codes, half_steps = quantise_rows(turn_rows(source, start, min(start + step, source.n), plan), plan, fmt)
            for at in range(0, len(codes), slice_):
                pack.write_rows(packed, start + at, codes[at : at + slice_], half_steps[at : at + slice_])
    if into is not None:
        into.plan.overwrite(plan)
        plan = into.plan
    plan.follow = None  # only rounding needed it
    permanent = packed.format.bytes
    peak = max(6 * min(step, source.n) * source.k, 8 * source.k**2) + 5 * SLICE_BYTES
    if on_gpu:
        torch.cuda.synchronize(device)
        peak = torch.cuda.max_memory_allocated(device) - before - permanent
        torch.cuda.empty_cache()
    return Quantised(packed, plan, time.monotonic() - begin, permanent, peak)
