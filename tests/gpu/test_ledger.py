"""What a head counts on the device, under graph replay: calls, rows, latency, stock calls, sampled and shadow checks."""

from __future__ import annotations

import threading
import time

import pytest
import torch

from radiance import check, ledger, pack, reference, rerank, rotation, shortlist
from radiance.head import DraftHead
from radiance.source import Source
from radiance.status import HeadState, HeadStatus, Phase

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")]

DEVICE = torch.device("cuda:0")
N, K, R = 20000, 1024, 32


def draft_rows(m: int) -> torch.Tensor:
    return torch.randn(m, K, device=DEVICE).bfloat16()


@pytest.fixture(scope="module")
def weight() -> torch.Tensor:
    torch.manual_seed(torch.seed() % 2**31)
    return (torch.randn(N, K, device=DEVICE) * 0.05).bfloat16()


def make(weight: torch.Tensor, **more: object) -> DraftHead:
    head = DraftHead(Source(weight), HeadStatus("lm_head", HeadState.OFF), n_valid=N, rerank=R, **more)  # type: ignore[arg-type]
    head.pack(Phase.LOAD, late=False)
    assert head.usable(1, capturing=False), head.status
    return head


def capture(call: object) -> torch.cuda.CUDAGraph:
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call()  # type: ignore[operator]
    return graph


@pytest.mark.parametrize("m", [1, 8, 33, 72, 128])
def test_1000_replays_are_1000_calls(weight: torch.Tensor, m: int) -> None:
    head, x = make(weight), draft_rows(m)
    head.crossover = m
    kept: list[torch.Tensor] = []
    graph = capture(lambda: kept.append(head.top_tokens(x)[0]))
    first = head.candidates(x, R)[0][:, 0]
    torch.cuda.synchronize()
    head.refresh()
    before = (head.status.calls, head.status.rows, head.status.rescued_rows, sum(head.status.latency.counts))
    begin = time.perf_counter()
    for _ in range(1000):
        graph.replay()
    torch.cuda.synchronize()
    took = time.perf_counter() - begin
    head.refresh()
    rescued = int((kept[0] != first).sum())
    after = (head.status.calls, head.status.rows, head.status.rescued_rows, sum(head.status.latency.counts))
    assert [b - a for a, b in zip(before, after, strict=True)] == [1000, 1000 * m, 1000 * rescued, 1000]
    assert head.status.latency.clock == "device"
    assert 0 < head.status.latency.sum_seconds < took + 1, "calls follow one another, so their times add up to less"


def test_the_histogram_is_that_of_the_times(weight: torch.Tensor) -> None:
    """One call at a time: each raises the sum by its own time and the bucket that holds it."""
    head, x = make(weight), draft_rows(4)
    graph = capture(lambda: head.top_tokens(x))
    torch.cuda.synchronize()
    edges = [0.0, *head.status.latency.buckets, float("inf")]
    for _ in range(50):
        head.refresh()
        seconds, counts = head.status.latency.sum_seconds, head.status.latency.counts
        graph.replay()
        torch.cuda.synchronize()
        head.refresh()
        took = head.status.latency.sum_seconds - seconds
        (slot,) = [i for i, (a, b) in enumerate(zip(counts, head.status.latency.counts, strict=True)) if a != b]
        assert edges[slot] - 1e-9 < took <= edges[slot + 1] + 1e-9


def test_counters_can_be_read_while_a_graph_is_captured(weight: torch.Tensor) -> None:
    """By another thread, as the worker's telemetry does, and by the capturing one; the capture must not notice."""
    head, x = make(weight), draft_rows(4)
    read: list[int] = []
    stop = threading.Event()

    def watch() -> None:
        while not stop.is_set():
            read.append(head.ledger.read()[ledger.CALLS])

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        graphs = []
        for _ in range(20):
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                head.top_tokens(x)
                read.append(head.ledger.read()[ledger.CALLS])
                head.top_tokens(x)
            graphs.append(graph)
            torch.empty(1 << 22, device=DEVICE)
        for graph in graphs:
            graph.replay()
        torch.cuda.synchronize()
    finally:
        stop.set()
        watcher.join()
    assert head.ledger.read()[ledger.CALLS] == 40
    assert len(read) > 40
    assert max(read) <= 40


def test_a_busy_device_holds_nobody_up(weight: torch.Tensor) -> None:
    head, x = make(weight), draft_rows(1)
    head.top_tokens(x)
    torch.cuda.synchronize()
    big = torch.randn(8192, 8192, device=DEVICE)
    torch.cuda.synchronize()
    for _ in range(50):
        big = big @ big * 1e-4
    head.top_tokens(x)
    done = torch.cuda.Event()
    done.record()
    assert head.ledger.read()[ledger.CALLS] == 1, "read after what the main stream has queued"
    assert not done.query()
    torch.cuda.synchronize()
    assert head.ledger.read()[ledger.CALLS] == 2


def test_stock_calls_are_counted_when_their_graph_is_replayed(weight: torch.Tensor) -> None:
    head = make(weight)
    head.crossover = 8
    graph = capture(lambda: head.usable(9, capturing=True))
    head.count_stock("bias")
    late = capture(lambda: head.count_stock("fp8_scale"))  # a reason without a word of its own
    for _ in range(7):
        graph.replay()
    late.replay()
    torch.cuda.synchronize()
    head.refresh()
    assert {k: v for k, v in head.status.stock_calls.items() if v} == {"rows": 7, "bias": 1, "declined": 1}


@pytest.mark.parametrize("rows_call", [False, True])
def test_sampled_checks_in_a_graph_count_what_torch_counts(weight: torch.Tensor, rows_call: bool) -> None:
    """Two candidates a row, so that many winners are missed; each replay with rows of its own."""
    head = DraftHead(Source(weight), HeadStatus("lm_head", HeadState.OFF), n_valid=N - 3, rerank=2, shadow_sample=5)
    head.pack(Phase.LOAD, late=False)
    assert head.usable(1, capturing=False)
    m = 3
    x = draft_rows(m)
    graph = capture(lambda: head.candidates(x, 2) if rows_call else head.top_tokens(x))
    turns, missed, sampled = int(head.ledger.words[ledger.STATE]), 0, 0
    before = checked(head)
    for turn in range(turns + 1, turns + 101):
        x.copy_(draft_rows(m))
        graph.replay()
        if turn % 5:
            continue
        row = turn // 5 % m
        done = head.quantised
        assert done is not None
        ids = shortlist.candidates(done.packed, done.plan.rotation, head.source, x, 2, N - 3)[0][row].tolist()
        truth = int((x[row].float() @ weight[: N - 3].float().T).bfloat16().argmax())
        missed += truth not in ids
        sampled += 1
    after = checked(head)
    assert after[0] - before[0] == sampled == 20
    assert after[1] - before[1] == after[2] - before[2], "what rerank saw, it ranked right"
    assert abs(after[2] - before[2] - missed) <= 1  # a tie within one bf16 step
    assert 0 < missed < 20


def checked(head: DraftHead) -> tuple[int, int, int]:
    torch.cuda.synchronize()
    head.refresh()
    return head.status.checked_rows, head.status.disagreed_rows, head.status.missed_rows


def test_a_sampled_check_sees_a_winner_that_the_packed_copy_does_not_know(weight: torch.Tensor) -> None:
    head = make(weight.clone(), shadow_sample=1)
    x = draft_rows(1)
    head.top_tokens(x)
    count, wrong, missed = checked(head)
    assert (count, wrong, missed) == (1, missed, missed)
    head.source.weight[N - 1] = x[0] * 100  # the packed copy does not know: no candidate, and the exact winner
    head.top_tokens(x)
    assert checked(head) == (2, wrong + 1, missed + 1)


def test_a_sampled_check_sees_a_rerank_that_lies(weight: torch.Tensor) -> None:
    head, x = make(weight), draft_rows(1)
    done, counters = head.quantised, ledger.make(DEVICE, every=1)
    assert done is not None
    ids, answer = shortlist.shortlist(done.packed, done.plan.rotation, x, 200, N)
    rerank.score(head.source, x, ids, answer, counters=counters, winners=True)
    for lie in (0, 1):
        answer.best -= lie  # the id is in the low bits, inverted: the next one
        check.run(head.source, x, ids, answer, counters, n_valid=N, round_to=torch.float32, vocab=None)
        assert counters.words[ledger.CHECKED : ledger.STOCK].tolist() == [1 + lie, lie, 0]


def test_a_sampled_check_knows_the_draft_vocabulary(weight: torch.Tensor) -> None:
    ids = torch.arange(7, N, 13, dtype=torch.int32)
    head = make(weight, vocab=ids, shadow_sample=1)
    for _ in range(20):
        head.top_tokens(draft_rows(2))
    count, wrong, missed = checked(head)
    assert count == 20
    assert wrong == missed <= 2, "a check against all rows would miss nearly always"


def test_shadow_compares_in_a_graph(weight: torch.Tensor) -> None:
    head, m = make(weight, shadow=True), 6
    x = draft_rows(m)
    graph = capture(lambda: head.compare(x, torch.nn.functional.linear(x, weight)))
    wrong = torch.zeros(m, N, device=DEVICE)
    wrong[:, 0] = 1
    other = capture(lambda: head.compare(x, wrong))
    for _ in range(10):
        graph.replay()
    rows, unequal, missed = checked(head)
    assert rows == 60
    assert missed <= unequal <= 10
    other.replay()
    assert checked(head) == (66, unequal + 6, missed + 6)


def test_portable_kernels_count_calls() -> None:
    p, rot = pack.allocate(pack.Format("quarter", 500, 128, 128), DEVICE), rotation.to(rotation.make(128), DEVICE)
    pack.write_rows(
        p, 0, torch.randint(0, 4, (500, 128), dtype=torch.uint8, device=DEVICE), torch.ones(500, 1, device=DEVICE)
    )
    source, x = Source(torch.randn(500, 128, device=DEVICE).bfloat16()), torch.randn(3, 128, device=DEVICE).bfloat16()
    counters = ledger.make(DEVICE)
    got, _ = shortlist.top_tokens(p, rot, source, x, 8, 500, counters=counters)
    want = reference.select(reference.coarse(p, rot, x), 8, 500)
    assert counters.words[: ledger.NANOSECONDS].tolist() == [1, 3, int((got != want[:, 0]).sum())]
