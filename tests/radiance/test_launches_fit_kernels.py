"""What the host passes to each CUDA kernel is what its signature says, and a call is as many launches as promised. No GPU:
the host side runs on meta tensors, launches are recorded, signatures are read from the sources."""

from __future__ import annotations

import ctypes
import re
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
import torch

from radiance import check, ledger, pack, rotation, shortlist, tuning
from radiance.kernels import build
from radiance.source import Source

META = torch.device("meta")
H200 = tuning.Device("NVIDIA H200", (9, 0), 132, 232448)
A100 = tuning.Device("NVIDIA A100", (8, 0), 108, 166912)
KINDS = {"long long": ctypes.c_longlong, "u64": ctypes.c_longlong, "int": ctypes.c_int, "float": ctypes.c_float}


def signature(stem: str, entry: str) -> list[Any]:
    """The ctypes of a kernel's parameters."""
    text = (build._HERE / f"{stem}.cu").read_text()
    found = re.search(rf'extern "C" __global__ void (?:__launch_bounds__\(.*?\)\s+)?{entry}\(([^)]*)\)', text, re.S)
    assert found, f"no kernel {entry} in {stem}.cu"
    kinds = []
    for parameter in found.group(1).split(","):
        plain = parameter.replace("const ", "").strip()
        named = next((kind for name, kind in KINDS.items() if re.fullmatch(rf"{name} \w+", plain)), None)
        kinds.append(ctypes.c_void_p if "*" in plain else named)
    return kinds


Launch = tuple[str, str, Mapping[str, int | str]]


@pytest.fixture(params=[H200, A100], ids=lambda d: d.name)
def launched(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> list[Launch]:
    """(stem, entry, defines) of every launch so far; each is checked against its kernel's signature."""
    launches: list[Launch] = []

    def kernel(
        stem: str, entry: str, defines: Mapping[str, int | str], device: torch.device, arch: str
    ) -> build.Kernel:
        return build.Kernel(entry, 0, (stem, entry, defines))

    def launch(kernel: build.Kernel, grid: Any, threads: int, shared: int, args: Sequence[Any], **_: object) -> None:
        stem, entry, _defines = kernel.function
        assert [kind for _, kind in args] == signature(stem, entry), f"arguments of {entry} in {stem}.cu"
        assert all(size > 0 for size in grid)
        assert 0 < threads <= 1024
        assert shared <= request.param.shared
        launches.append(kernel.function)

    monkeypatch.setattr(build, "kernel", kernel)
    monkeypatch.setattr(build, "launch", launch)
    monkeypatch.setattr(tuning, "device", lambda where: request.param)
    tuning.segments.cache_clear()
    return launches


def head(n: int, k: int) -> tuple[pack.Packed, rotation.Rotation, Source]:
    f = pack.Format("fragment", n, k, pack.default_group(k))
    packed = pack.Packed(f, torch.empty(f.codes_shape, dtype=torch.uint8, device=META),
                         torch.empty(f.half_steps_shape, dtype=torch.uint8, device=META), torch.empty(f.n_padded, device=META))  # fmt: skip
    return packed, rotation.to(rotation.make(k), META), Source(torch.empty(n, k, dtype=torch.bfloat16, device=META))


def counters(every: int = 0) -> ledger.Ledger:
    words = torch.zeros(ledger.SIZE + 3, dtype=torch.int64, device=META)
    return ledger.Ledger(words, object(), every)  # type: ignore[arg-type]


@pytest.mark.parametrize("k", [576, 5120])
@pytest.mark.parametrize("m", [1, 8, 16, 32, 64])
def test_a_call_is_four_launches_and_one_more_if_it_may_be_checked(launched: list[Launch], m: int, k: int) -> None:
    p, rot, source = head(20000, k)
    x = torch.empty(m, k, dtype=torch.bfloat16, device=META)
    passes = sum(segment.passes for segment in tuning.segments(m, p.format, tuning.device(META)))
    for kept, more in ((None, []), (counters(), []), (counters(every=100), ["check"])):
        for call in (shortlist.top_tokens, shortlist.candidates):
            launched.clear()
            call(p, rot, source, x, 32, 20000, counters=kept)
            entries = [entry for _, entry, _ in launched]
            assert entries == ["rotate", *["coarse"] * passes, "select_top", "rerank", *more]


def test_only_the_first_segment_opens_the_call(launched: list[Launch], monkeypatch: pytest.MonkeyPatch) -> None:
    p, rot, source = head(20000, 5120)
    opened = []
    original = shortlist.coarse_pass.run
    monkeypatch.setattr(
        shortlist.coarse_pass, "run", lambda *args: opened.append(args[4] is not None) or original(*args)
    )
    shortlist.top_tokens(p, rot, source, torch.empty(1025, 5120, dtype=torch.bfloat16, device=META), 32, 20000)
    assert opened[0]
    assert len(opened) > 1
    assert not any(opened[1:])


def test_no_draft_row_is_no_check(launched: list[Launch]) -> None:
    p, rot, source = head(20000, 576)
    shortlist.top_tokens(
        p, rot, source, torch.empty(0, 576, dtype=torch.bfloat16, device=META), 32, 20000, counters=counters(every=1)
    )
    assert "check" not in [entry for _, entry, _ in launched]


def test_counting_and_comparing_by_themselves(launched: list[Launch], monkeypatch: pytest.MonkeyPatch) -> None:
    kept = counters()
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    kept.count_stock("rows")
    kept.count_stock("unheard_of")
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    kept.count_stock("unheard_of")
    ids = torch.empty(9, 32, dtype=torch.int64, device=META)
    kept.compare(ids[:, 0], ids[:, 1], ids)
    assert [entry for _, entry, _ in launched] == ["count", "count", "tally"]
    assert {reason: count for reason, count in kept.seen.items() if count} == {"unheard_of": 1}


def test_a_row_that_does_not_fit_is_refused_by_name(launched: list[Launch]) -> None:
    k = 70000
    source = Source(torch.empty(64, k, dtype=torch.bfloat16, device=META))
    answer = shortlist.rerank_pass.Answer(1, META)
    ids = torch.empty(1, 8, dtype=torch.int32, device=META)
    with pytest.raises(Exception, match="k=70000"):
        check.run(source, source.weight[:1], ids, answer, counters(1), n_valid=64, round_to=torch.float32, vocab=None)
