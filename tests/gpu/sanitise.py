"""One small call of every CUDA kernel, for compute-sanitizer (tests/gpu/README.md). Prints "done"."""

from __future__ import annotations

import torch

from radiance import coarse, pack, rerank, rotation, shortlist, tuning
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
        for kernel in sorted({*tuning._HOPPER, *tuning._AMPERE}, key=str):
            if kernel.stem == "coarse" or tuning.device(where).is_hopper:
                x = torch.randn(kernel.rows, k).bfloat16().to(where)
                piece = coarse.run(p, rot, x, tuning.Segment(0, kernel.rows, 1, kernel))
                ids = shortlist.select(coarse.Scratch("cuda", f, kernel.rows, [piece]), 8, n - 3)
                rerank.best(source, x, ids)
        for m in (1, 70):
            shortlist.top_tokens(p, rot, source, torch.randn(m, k).bfloat16().to(where), 32, n)
    torch.cuda.synchronize()
    print("done")


if __name__ == "__main__":
    main()
