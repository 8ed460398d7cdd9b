"""The GPU kernels against the reference, on fresh random data and on rows made to break them. Needs a GPU (`make test-gpu`).

Every buffer a kernel writes starts as NaN or the greatest integer: torch fills what torch.empty returns while
deterministic algorithms are on, so an element that is read before it is written cannot pass for a result.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from radiance import coarse, ledger, pack, reference, rerank, rotation, shortlist, tuning
from radiance.source import Source

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")]

DEVICE = torch.device("cuda:0")


@pytest.fixture(autouse=True)
def poisoned() -> Iterator[None]:
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.utils.deterministic.fill_uninitialized_memory = True
    torch.manual_seed(torch.seed() % 2**31)
    yield
    torch.use_deterministic_algorithms(False)


def packed_head(n: int, k: int, layout: str = "fragment", group: int | None = None) -> pack.Packed:
    f = pack.Format(layout, n, k, group or pack.default_group(k))  # type: ignore[arg-type]
    p = pack.allocate(f, DEVICE)
    for start in range(0, n, 8192):
        rows = min(8192, n - start)
        codes = torch.randint(0, 4, (rows, k), dtype=torch.uint8, device=DEVICE)
        pack.write_rows(p, start, codes, torch.rand(rows, f.groups, device=DEVICE) * 0.5 + 0.5)
    return p


def turn(k: int) -> rotation.Rotation:
    return rotation.to(rotation.make(k), DEVICE)


def draft_rows(m: int, k: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    return (torch.randn(m, k, device=DEVICE) * torch.exp(0.5 * torch.randn(1, k, device=DEVICE))).to(dtype)


def keys(values: torch.Tensor) -> torch.Tensor:
    bits = values.to(torch.bfloat16).view(torch.int16).int() & 0xFFFF
    return torch.where(bits >= 0x8000, ~bits & 0xFFFF, bits | 0x8000)


def tolerance(k: int) -> float:
    """Of relative errors: at a small k one level of x that rounds the other way is seen."""
    return 1e-3 if k >= 500 else 5e-3


def check_piece(p: pack.Packed, rot: rotation.Rotation, x: torch.Tensor, piece: coarse.Piece) -> None:
    f = p.format
    got = coarse.Scratch("cuda", f, x.shape[0], [piece]).row_values()
    want = reference.coarse(p, rot, x)
    assert bool(got.isfinite().all())
    error = (got.float() - want.float()).norm() / want.float().norm()
    assert error < tolerance(f.k), f"relative error {error}"
    tiles = torch.nn.functional.pad(got.float(), (0, f.n_padded - f.n)).view(x.shape[0], -1, 16)
    assert piece.maxima is not None
    found = piece.maxima.view(torch.int16)[: x.shape[0], : tiles.shape[1]].int() & 0xFFFF
    assert torch.equal(found, keys(tiles.amax(2)))


KERNELS = sorted(tuning.CANDIDATES, key=str)


@pytest.mark.parametrize("kernel", KERNELS, ids=str)
@pytest.mark.parametrize(
    ("n", "k"), [(1000, 5120), (4101, 2880), (777, 576), (64, 64), (300, 65), (2000, 5376), (640, 7168)]
)
def test_every_coarse_kernel(kernel: tuning.Coarse, n: int, k: int) -> None:
    p, rot = packed_head(n, k), turn(k)
    if kernel.shared_bytes(p.format) + 2048 > tuning.device(DEVICE).shared:
        pytest.skip("x does not fit; tuning would not choose it")
    if kernel.stem == "coarse_wgmma" and not tuning.device(DEVICE).is_hopper:
        pytest.skip("wgmma is Hopper's")
    for rows, passes in ((kernel.rows, 1), (kernel.rows - 3, 1), (2 * kernel.rows - 1, 2)):
        x = draft_rows(rows, k)
        check_piece(p, rot, x, coarse.run(p, rot, x, tuning.Segment(0, rows, passes, kernel)))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_coarse_takes_every_type_and_strided_rows(dtype: torch.dtype) -> None:
    p, rot = packed_head(500, 640), turn(640)
    x = draft_rows(10, 1280, dtype)[:, 320:960]
    assert not x.is_contiguous()
    check_piece(p, rot, x, coarse.coarse(p, rot, x).pieces[0])


@pytest.mark.parametrize("layout", ["fragment", "quarter"])
@pytest.mark.parametrize("r", [1, 8, 32, 64, 1024])
@pytest.mark.parametrize("kind", ["random", "ties", "zero"])
def test_select_is_the_exact_top_r(layout: str, r: int, kind: str) -> None:
    n, k = 20011, 128
    p, rot = packed_head(n, k, layout), turn(k)
    if kind == "ties":  # 300 different rows, each 60 odd times, far apart
        codes, steps = pack.read_rows(p, 0, n)
        same = torch.arange(n, device=DEVICE) % 300
        pack.write_rows(p, 0, codes[same].contiguous(), steps[same].contiguous())
    x = torch.zeros(3, k, device=DEVICE, dtype=torch.bfloat16) if kind == "zero" else draft_rows(3, k)
    scratch = coarse.coarse(p, rot, x)
    for n_valid in (n, n - 5, 19200, 17, 5):
        got = shortlist.select(scratch, r, n_valid)
        assert torch.equal(got.long(), reference.select(scratch.row_values(), r, n_valid)), f"n_valid={n_valid}"


def test_rows_that_are_zero_tie_at_zero() -> None:
    """Their coarse values come out as -0 or 0, by the sign of the sum, and must sort as one."""
    n, k = 4000, 640
    p, rot = packed_head(n, k), turn(k)
    p.units.zero_()
    scratch = coarse.coarse(p, rot, draft_rows(9, k))
    assert torch.equal(shortlist.select(scratch, 64, n).long(), torch.arange(64, device=DEVICE).expand(9, 64))


@pytest.mark.parametrize("layout", ["fragment", "quarter"])
def test_select_of_a_large_vocabulary(layout: str) -> None:
    p, rot = packed_head(262208, 256, layout), turn(256)
    scratch = coarse.coarse(p, rot, draft_rows(2, 256))
    got = shortlist.select(scratch, 64, 262144)
    assert torch.equal(got.long(), reference.select(scratch.row_values(), 64, 262144))


def sources(n: int, k: int) -> dict[str, Source]:
    w = torch.randn(n, k, device=DEVICE) * 0.05
    e4m3 = w.to(torch.float8_e4m3fn).t().contiguous().t().contiguous()
    wide = torch.randn(n, k + 3, device=DEVICE).to(torch.bfloat16)
    return {
        "bf16": Source(w.bfloat16()),
        "fp16": Source(w.half()),
        "fp32": Source(w),
        "e4m3": Source(e4m3, torch.rand(n, device=DEVICE) + 0.5),
        "unaligned": Source(wide[:, 1 : k + 1]),
    }


@pytest.mark.parametrize("layout", ["fragment", "quarter"])
@pytest.mark.parametrize("k", [5120, 576, 65, 9000])
@pytest.mark.parametrize("kind", ["bf16", "fp16", "fp32", "e4m3", "unaligned"])
def test_rerank_is_exact(layout: str, k: int, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if layout == "quarter":
        monkeypatch.setattr(rerank, "has_cuda_kernels", lambda where: False)
    source = sources(400, k)[kind]
    for m, r in ((1, 1), (3, 33), (40, 32)):
        ids = torch.randint(-1, 400, (m, r), device=DEVICE, dtype=torch.int32)
        ids[:, 0] = 7
        for dtype in (torch.bfloat16, torch.float32):
            x = draft_rows(m, k, dtype)
            want = reference.rerank(source, x.float(), ids.long())
            got = rerank.rerank(source, x, ids)
            # fp32 sums of k products differ by their order, in proportion to the norms
            scale = x.float().norm(dim=1).amax() * source.gather(torch.arange(400, device=DEVICE)).norm(dim=1).amax()
            assert torch.equal(got.isneginf(), ids < 0)
            assert bool(((got - want).masked_fill(ids < 0, 0).abs() <= 1e-6 * scale).all())
            for round_to in (torch.float32, torch.bfloat16, torch.float16):
                best, value = rerank.best(source, x, ids, round_to=round_to)
                rounded = got.to(round_to).float()
                expected, top = reference.best(ids.long(), rounded)
                assert torch.equal(best, expected)
                assert torch.equal(value, top)


def test_rerank_beyond_32_bit_offsets() -> None:
    n, k = 420_000, 5120  # n * k > 2^31
    w = torch.zeros(n, k, dtype=torch.bfloat16, device=DEVICE)
    w[n - 1] = torch.randn(k, device=DEVICE).bfloat16()
    x = draft_rows(1, k)
    ids = torch.tensor([[n - 1, 0]], dtype=torch.int32, device=DEVICE)
    got = rerank.rerank(Source(w), x, ids)
    torch.testing.assert_close(got[0, 0], (w[n - 1].float() * x[0].float()).sum(), rtol=1e-4, atol=1e-3)
    assert got[0, 1] == 0


@pytest.mark.parametrize("layout", ["fragment", "quarter"])
@pytest.mark.parametrize("m", [0, 1, 5, 17, 40, 72, 129, 1025])
def test_whole_path_for_any_number_of_draft_rows(layout: str, m: int) -> None:
    n, k, r = 5003, 512, 32
    p, rot = packed_head(n, k, layout), turn(k)
    source, x = Source(torch.randn(n, k, device=DEVICE).bfloat16()), draft_rows(m, k)
    counters = ledger.make(DEVICE)
    got, value = shortlist.top_tokens(p, rot, source, x, r, n - 2, counters=counters)
    ids, exact = shortlist.candidates(p, rot, source, x, r, n - 2)
    assert got.shape == (m,)
    assert ids.shape == exact.shape == (m, r)
    if m == 0:
        return
    best, top = reference.best(ids, exact)
    assert torch.equal(got, best)
    assert torch.equal(value, top)
    torch.cuda.synchronize()
    assert counters.words[:3].tolist() == [1, m, int((got != ids[:, 0]).sum())]
    want = reference.select(reference.coarse(p, rot, x), r, n - 2)
    shared = torch.tensor([len(set(a) & set(b)) for a, b in zip(ids.tolist(), want.tolist(), strict=True)])
    assert float(shared.float().mean()) > r - 0.5


@pytest.mark.parametrize("layout", ["fragment", "quarter"])
def test_8192_rows_agree_with_the_reference(layout: str) -> None:
    """Winners differ only where the candidate sets do, and those only at the r-th place, by one bf16 step of rounding."""
    n, k, r = 16384, 1024, 32
    p, rot = packed_head(n, k, layout), turn(k)
    source = Source(torch.cat([reference.decode(p, i, 4096) for i in range(0, n, 4096)]).bfloat16())
    differing = 0
    for _ in range(8):
        x = draft_rows(1024, k)
        coarse_values = reference.coarse(p, rot, x)
        ids, exact = shortlist.candidates(p, rot, source, x, r, n)
        want = reference.select(coarse_values, r, n)
        here, there = ids.sort(1).values, want.sort(1).values
        same = (here == there).all(1)
        differing += int((~same).sum())
        edge = coarse_values.gather(1, want[:, -1:]).float()
        strays = coarse_values.gather(1, ids).float()
        assert bool((strays >= edge - edge.abs() * 2.0**-6).all())
        winners, _ = reference.best(ids, exact)
        expected, _ = reference.best(want, reference.rerank(source, x, want))
        both = (ids == expected[:, None]).any(1) & (want == winners[:, None]).any(1)
        gap = (exact.amax(1) - reference.rerank(source, x, expected[:, None])[:, 0]).abs()
        assert bool(((winners == expected) | ~both | (gap <= 1e-4 * exact.amax(1).abs())).all())
    assert differing < 0.2 * 8192


@pytest.mark.parametrize("layout", ["fragment", "quarter"])
def test_rows_made_to_break_it(layout: str) -> None:
    n, k, r = 1000, 512, 32
    p, rot = packed_head(n, k, layout), turn(k)
    source = Source(torch.randn(n, k, device=DEVICE).bfloat16())
    x = draft_rows(8, k)
    x[0] = 0
    x[1, 3] = float("nan")
    x[2, 5] = float("inf")
    x[3] *= 1e-38
    x[4] *= 1e30
    x[5] = 0
    x[5, 0] = 1
    got, value = shortlist.top_tokens(p, rot, source, x, r, n)
    ids, exact = shortlist.candidates(p, rot, source, x, r, n)
    for row in (0, 1, 2):  # nothing to go by: the lowest ids
        assert ids[row].tolist() == list(range(r))
    assert got[0] == 0
    assert value[0] == 0
    assert got[1] == 0  # where torch.argmax of the stock row of NaN is
    assert bool(value[1].isnan())
    assert bool(exact[1].isnan().all())
    for row in (4, 5, 6, 7):
        want = reference.select(reference.coarse(p, rot, x[row : row + 1]), r, n)
        assert len(set(ids[row].tolist()) & set(want[0].tolist())) >= r - 2
        assert bool(exact[row].isfinite().all())


@pytest.mark.parametrize("layout", ["fragment", "quarter"])
def test_graph_replay_follows_its_inputs_and_counts(layout: str) -> None:
    n, k, m, r = 3000, 576, 9, 16
    p, rot = packed_head(n, k, layout), turn(k)
    source = Source(torch.randn(n, k, device=DEVICE).bfloat16())
    x = draft_rows(m, k)
    counters = ledger.make(DEVICE)
    shortlist.warm(p, rot, source, r, n, x.dtype, m)
    torch.use_deterministic_algorithms(False)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        got, value = shortlist.top_tokens(p, rot, source, x, r, n, counters=counters)
    for replay in range(1, 4):
        x.copy_(draft_rows(m, k))
        graph.replay()
        want, top = shortlist.top_tokens(p, rot, source, x, r, n)
        assert torch.equal(got, want)
        assert torch.equal(value, top)
        assert counters.words[:2].tolist() == [replay, replay * m]


@pytest.mark.parametrize("launch", tuning.TRITON_CANDIDATES, ids=str)
@pytest.mark.parametrize(("n", "k"), [(1000, 5120), (777, 576), (300, 65), (4101, 2880)])
def test_portable_coarse(n: int, k: int, launch: tuning.Triton) -> None:
    from radiance.kernels import coarse_triton

    p, rot = packed_head(n, k, "quarter"), turn(k)
    for m in (launch.rows - 3, 2 * launch.rows):
        x = draft_rows(m, k)
        values, maxima = coarse_triton.run(p, rot, x, launch)
        want = reference.coarse(p, rot, x).float()
        got = values[:m, :n].float()
        assert (got - want).norm() / want.norm() < tolerance(k)
        assert torch.equal(values.float().view(values.shape[0], -1, 64).amax(2), maxima.float())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_portable_coarse_takes_every_type_and_strided_rows(dtype: torch.dtype) -> None:
    p, rot = packed_head(500, 640, "quarter"), turn(640)
    x = draft_rows(10, 1280, dtype)[:, 320:960]
    assert not x.is_contiguous()
    got, want = coarse.coarse(p, rot, x).row_values().float(), reference.coarse(p, rot, x).float()
    assert (got - want).norm() / want.norm() < tolerance(640)
