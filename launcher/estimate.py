"""What a profile will need and what the 2-bit head can bring, by arithmetic on the facts it states. Nothing is measured here.

Memory, for each accelerator: weights and drafter over the ranks, the packed head, and what is left for keys and values.

Gain: a step of speculative decoding reads the target's weights once and, `calls` times, the drafter's and the head's. Were
reading all it did, taking the share of the heads down to `ratio` would bring 1 / (1 - share * (1 - ratio)) - 1: a bound, as
everything else a step does (attention, communication, launches) only makes the share smaller. With a measured step time in
the profile (expected.step_seconds) it is a forecast instead: calls * seconds of the stock head * (1 - ratio) / step.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise

from launcher.schema import FastDraft, Profile
from launcher.sections import Kind

GIB = 1 << 30
#: vLLM's default of gpu_memory_utilization
UTILISATION = 0.9
#: time of the whole 2-bit path over that of the stock head, by draft rows, and the stock head's microseconds at 1 row: one
#: NVIDIA H200, `radiance bench head` (tests/bench/results/h200.json; tests/launcher/test_estimate.py compares)
MEASURED = {
    (248320, 5120): (624.5, {1: 0.159, 8: 0.163, 16: 0.173, 32: 0.203, 64: 0.276, 128: 0.507}),
    (124160, 5120): (334.5, {1: 0.170, 8: 0.174, 16: 0.188, 32: 0.217, 64: 0.284, 128: 0.547}),
    (248320, 2048): (255.7, {1: 0.210, 8: 0.208, 16: 0.219, 32: 0.253, 64: 0.315, 128: 0.552}),
    (49152, 576): (29.0, {1: 0.600, 8: 0.615, 16: 0.704, 32: 0.730, 64: 0.853, 128: 1.195}),
}
#: methods whose drafter asks for all its tokens in one call, a row for each
PARALLEL = ("dflash", "dspark")


@dataclass(frozen=True)
class Memory:
    """Bytes on each accelerator. None: the profile does not state what it takes to know."""

    weights: int
    drafter: int
    packed_head: int | None
    #: of one token, in all layers
    kv_per_token: int | None
    #: for max_num_seqs sequences of max_model_len
    kv_full: int | None
    #: left for keys and values on the smallest accelerator the profile allows, before activations and graphs
    kv_room: int | None


@dataclass(frozen=True)
class Gain:
    """At `rows` draft rows a call. `speedup` 0.19 means 19 % more tokens per second, at most unless `forecast`."""

    sequences: int
    rows: int
    calls: int
    head_share: float
    ratio: float
    speedup: float
    forecast: bool


@dataclass(frozen=True)
class Estimate:
    memory: Memory | None
    gains: tuple[Gain, ...]
    #: what would make it slower, or bring nothing for its memory
    warnings: tuple[str, ...]


def estimate(profile: Profile) -> Estimate:
    memory, gains = _memory(profile), _gains(profile)
    return Estimate(memory, gains, (*_losses(profile, gains), *_tight(profile, memory)))


def head_rows(profile: Profile) -> int | None:
    """Rows of the draft head on each rank of a tensor-parallel group."""
    facts = profile.architecture
    return math.ceil(facts.vocab_size / profile.tensor_parallel_size) if facts and facts.vocab_size else None


def packed_bytes(n: int, k: int) -> int:
    """Of a packed head [n, k] in fragment order, as radiance/pack.py lays it out (a test compares)."""
    columns = _up(k, 128)
    groups = _up(columns // (128 if k >= 1024 else 64), 4)
    return _up(n, 64) * (columns // 4 + groups + 4)


def _up(value: int, step: int) -> int:
    return -(-value // step) * step


def ratio(n: int, k: int, rows: int) -> float:
    """Of the measured shape nearest in weights; between measured row counts, linear."""
    nearest = min(MEASURED, key=lambda shape: abs(math.log(shape[0] * shape[1] / (n * k))))
    points = sorted(MEASURED[nearest][1].items())
    if rows <= points[0][0]:
        return points[0][1]
    for (low, at_low), (high, at_high) in pairwise(points):
        if rows <= high:
            return at_low + (at_high - at_low) * (rows - low) / (high - low)
    return points[-1][1]


def crossover(n: int, k: int) -> int:
    """Draft rows above which the plugin serves the stock head: radiance/tuning.py for an H200 (a test compares)."""
    return 128 if n * k >= 1 << 27 else 64


def _memory(profile: Profile) -> Memory | None:
    facts = profile.architecture
    if facts is None:
        return None
    ranks = profile.tensor_parallel_size * profile.pipeline_parallel_size
    on, n = profile.fast_draft is not FastDraft.DISABLED, head_rows(profile)
    packed = packed_bytes(n, facts.hidden_size) if n and facts.hidden_size else None
    # The pages of an 8-bit cache are half as large. Heads that do not divide by the ranks are kept on several.
    size = 0.5 if "8" in (profile.kv_cache_dtype or "") else 1.0
    per_token = math.ceil(facts.kv_bytes_per_token * size / ranks) or None
    weights = round(facts.weight_gib * GIB / ranks)
    drafter = round(facts.drafter_gib * GIB / profile.tensor_parallel_size) if profile.speculative else 0
    room = profile.kv_cache_memory_bytes
    if room is None and profile.accelerator.memory_gib_min:
        whole = profile.accelerator.memory_gib_min * GIB * (profile.gpu_memory_utilization or UTILISATION)
        room = round(whole) - weights - drafter - (packed or 0 if on else 0)
    full = None
    if per_token and profile.max_model_len and profile.max_num_seqs:
        full = per_token * profile.max_model_len * profile.max_num_seqs
    return Memory(weights, drafter, packed if on else 0, per_token, full, room)


def _gains(profile: Profile) -> tuple[Gain, ...]:
    if profile.fast_draft is not FastDraft.ENABLED or Kind.NVIDIA not in profile.accelerator.kinds:
        return ()
    return tuple(
        gain
        for sequences in sorted({1, profile.max_num_seqs or 1})
        if (gain := gain_at(profile, sequences)) is not None
    )


def gain_at(profile: Profile, sequences: int) -> Gain | None:
    """None when the profile does not state the head or has no drafter with one."""
    facts, spec, n = profile.architecture, profile.speculative, head_rows(profile)
    if facts is None or spec is None or n is None or facts.hidden_size is None:
        return None
    depth, k = spec.num_speculative_tokens, facts.hidden_size
    calls, rows = (1, sequences * depth) if spec.method in PARALLEL else (depth, sequences)
    share = calls * _head(profile) / _step(profile)
    part = 1.0 if rows > crossover(n, k) else ratio(n, k, rows)
    if (step := profile.expected.step_seconds) is not None:
        nearest = min(MEASURED, key=lambda shape: abs(math.log(shape[0] * shape[1] / (n * k))))
        stock = MEASURED[nearest][0] * 1e-6 * n * k / (nearest[0] * nearest[1])
        share = min(0.99, calls * stock / step)
    return Gain(sequences, rows, calls, share, part, 1 / (1 - share * (1 - part)) - 1, step is not None)


def _head(profile: Profile) -> float:
    """Bytes of the stock draft head that one rank reads in a call."""
    facts, n = profile.architecture, head_rows(profile)
    assert facts is not None
    return (n or 0) * (facts.hidden_size or 0) * facts.head_bytes_per_weight


def _step(profile: Profile) -> float:
    """The least that one rank reads in a step: the target's weights for one token, drafter and stock head for each call."""
    facts, spec = profile.architecture, profile.speculative
    assert facts is not None
    ranks = profile.tensor_parallel_size * profile.pipeline_parallel_size
    target = (facts.active_weight_gib or facts.weight_gib) * GIB / ranks
    if spec is None:
        return target
    calls = 1 if spec.method in PARALLEL else spec.num_speculative_tokens
    return target + calls * (facts.drafter_gib * GIB / profile.tensor_parallel_size + _head(profile))


def _losses(profile: Profile, gains: tuple[Gain, ...]) -> list[str]:
    found = []
    if profile.fast_draft is FastDraft.ENABLED and profile.accelerator.kinds == [Kind.CPU]:
        found.append("on a CPU the 2-bit head is a proof, not a gain: it is slower than the stock head")
    if profile.fast_draft is FastDraft.SHADOW:
        found.append("shadow runs both heads: slower than either, for measuring")
    for gain in gains:
        at = f"at {gain.sequences} sequence{'s' if gain.sequences > 1 else ''} ({gain.rows} draft rows)"
        if gain.ratio > 1:
            found.append(
                f"a loss is predicted {at}: the head is too small for two bits to pay; set fast_draft: disabled"
            )
        elif gain.ratio == 1:
            found.append(
                f"no gain {at}: above {_limit(profile)} rows the plugin serves the stock head; lower max_num_seqs or depth"
            )
    found += _speculation(profile)
    if profile.speculative and profile.speculative.rejection_sample_method in ("fly", "synthetic"):
        found.append(
            f"rejection_sample_method {profile.speculative.rejection_sample_method} accepts tokens the target would not: the output changes"
        )
    return found


def _limit(profile: Profile) -> int:
    assert profile.architecture is not None
    return crossover(head_rows(profile) or 1, profile.architecture.hidden_size or 1)


def _speculation(profile: Profile) -> list[str]:
    """Speculation pays if it makes more tokens per byte read than none: 1 + acceptance against the step's growth."""
    accepted, facts = profile.expected.acceptance_per_draft, profile.architecture
    if profile.speculative is None or facts is None or accepted is None or Kind.CPU in profile.accelerator.kinds:
        return []
    ranks = profile.tensor_parallel_size * profile.pipeline_parallel_size
    plain = (facts.active_weight_gib or facts.weight_gib) * GIB / ranks
    growth = _step(profile) / plain
    if 1 + accepted < growth:
        return [
            f"a loss is predicted for speculation itself: a step reads {growth:.1f} times as much and brings "
            f"{1 + accepted:.1f} tokens; lower num_speculative_tokens or set speculative to null"
        ]
    return []


def _tight(profile: Profile, memory: Memory | None) -> list[str]:
    if memory is None or memory.kv_room is None or not memory.kv_per_token or not profile.max_model_len:
        return []
    if memory.kv_room < memory.kv_per_token * profile.max_model_len:
        room = max(0, memory.kv_room)
        return [
            f"{room / GIB:.1f} GiB for keys and values hold {room // memory.kv_per_token} tokens, less than one sequence of "
            f"max_model_len {profile.max_model_len}; raise tensor_parallel_size or gpu_memory_utilization, or lower max_model_len"
        ]
    return []


def memory_lines(memory: Memory) -> list[str]:
    """For a person; sizes for each accelerator."""
    parts = [f"weights {_gib(memory.weights)}"]
    if memory.drafter:
        parts.append(f"drafter {_gib(memory.drafter)}")
    if memory.packed_head:
        parts.append(f"packed head {_gib(memory.packed_head)}")
    lines = [f"{', '.join(parts)} on each accelerator"]
    if memory.kv_per_token:
        text = f"keys and values {memory.kv_per_token} bytes a token"
        if memory.kv_full:
            text += f", {_gib(memory.kv_full)} for all sequences at full length"
        if memory.kv_room is not None:
            text += f"; room for {max(0, memory.kv_room) // memory.kv_per_token} tokens ({_gib(memory.kv_room)}) before activations"
        lines.append(text)
    return lines


def gain_line(gain: Gain) -> str:
    most = "" if gain.forecast else "at most "
    calls = f"{gain.calls} call{'s' if gain.calls > 1 else ''} of {gain.rows} row{'s' if gain.rows > 1 else ''}"
    return (
        f"{most}{gain.speedup:+.0%} at {gain.sequences} sequence{'s' if gain.sequences > 1 else ''}: heads are {gain.head_share:.0%} of "
        f"{'the step' if gain.forecast else 'what a step reads'} ({calls}), and take {gain.ratio:.2f} of the stock time (H200)"
    )


def _gib(size: int) -> str:
    return f"{size / GIB:.2f} GiB"
