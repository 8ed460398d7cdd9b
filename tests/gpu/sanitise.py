"""One small call of every CUDA kernel, for compute-sanitizer (tests/gpu/README.md). Prints "done"."""

from __future__ import annotations

import torch

from radiance import coarse, ledger, pack, rerank, rotation, shortlist, tuning
from radiance.source import Source


def main() -> None:
    where = torch.device("cuda:0")
    for n, k in ((333, 640), (200, 1280)):
        f = pack.Format("fragment", n, k, pack.default_group(k))
        p = pack.allocate(f, where)
        pack.write_rows(
            p, 0, torch.randint(0, 4, (n, k), dtype=torch.uint8).to(where), torch.rand(n, f.groups).to(where) + 0.5
        )
        rot = rotation.to(rotation.make(k), where)
        source = Source(torch.randn(n, k).bfloat16().to(where))
        for kernel in sorted(tuning.CANDIDATES, key=str):
            if kernel.stem == "coarse" or tuning.device(where).is_hopper:
                x = torch.randn(kernel.rows, k).bfloat16().to(where)
                piece = coarse.run(p, rot, x, tuning.Segment(0, kernel.rows, 1, kernel))
                ids = shortlist.select(coarse.Scratch("cuda", f, kernel.rows, [piece]), 8, n - 3)
                rerank.best(source, x, ids)
        counters = ledger.make(where, every=2)
        for m in (1, 70, 3, 1):
            x = torch.randn(m, k).bfloat16().to(where)
            winners, _ = shortlist.top_tokens(p, rot, source, x, 32, n, counters=counters)
            found, _ = shortlist.candidates(p, rot, source, x, 32, n, counters=counters)
            counters.compare(winners, winners, found)
        ledger.warm(where)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            counters.count_stock("rows")
        graph.replay()
        torch.cuda.synchronize()  # a reader does not wait, and here everything takes its time
        words = counters.read()
        assert words[ledger.CALLS] == 8
        assert words[ledger.CHECKED : ledger.STOCK + 1] == [
            75 + 4,
            words[ledger.CHECKED + 1],
            words[ledger.CHECKED + 2],
            1,
        ]
    torch.cuda.synchronize()
    print("done")


if __name__ == "__main__":
    main()
