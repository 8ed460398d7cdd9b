"""The quantiser on a GPU: seconds and peak memory at full head size, recall on a Gaussian head. Needs a CUDA device.

python tests/bench/quantise.py --json tests/bench/results/h200-quantise.json
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import torch

from radiance import coarse, pack, provenance, quantise, shortlist
from radiance.source import Source

RANKS = (1, 8, 16, 32, 64, 128, 256, 512)


def cost(n: int, k: int) -> dict[str, Any]:
    """Quantise a random head twice; the second time is the one that counts (the first loads cuBLAS and cuSOLVER)."""
    source = Source(torch.randn(n, k, device="cuda", dtype=torch.bfloat16) * 0.02)
    layout = pack.choose(n, k, "cuda").layout
    found = {}
    for attempt in ("first", "second"):
        torch.cuda.empty_cache()
        reserved = torch.cuda.memory_reserved()
        done = quantise.quantise(source, n, layout)
        found[f"{attempt}_seconds"] = round(done.seconds, 3)
        found[f"{attempt}_peak_mib_beyond_packed"] = round(done.peak_bytes / 2**20, 1)
        found["packed_mib"] = round(done.packed_bytes / 2**20, 1)
        kept = torch.cuda.memory_reserved() - reserved
        found[f"{attempt}_reserved_mib_kept_beyond_packed"] = round((kept - done.packed_bytes) / 2**20, 1)
        del done
    return {"n": n, "k": k, **found}


def gaussian_recall(n: int, k: int, rows: int) -> dict[str, Any]:
    """Share of random draft rows whose exact bf16 argmax is in the coarse top r, by the kernels that serve."""
    generator = torch.Generator(device="cuda").manual_seed(0)
    weight = (torch.randn(n, k, generator=generator, device="cuda") * 0.02).bfloat16()
    source = Source(weight)
    done = quantise.quantise(source, n, pack.choose(n, k, "cuda").layout)
    hits = dict.fromkeys(RANKS, 0)
    for _ in range(0, rows, 64):
        x = torch.randn(64, k, generator=generator, device="cuda").bfloat16()
        exact = (x @ weight.T).float().argmax(1)
        ids = shortlist.select(coarse.coarse(done.packed, done.plan.rotation, x), max(RANKS), n)
        for r in RANKS:
            hits[r] += int((ids[:, :r] == exact[:, None]).any(1).sum())
    return {"n": n, "k": k, "draft_rows": rows, "share_in_top": {str(r): round(hits[r] / rows, 4) for r in RANKS}}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path)
    chosen = parser.parse_args()
    report = {
        "device": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "commit": provenance.commit(),
        "command": " ".join(["python", *sys.argv]),
        "cost": [cost(248320, 5120), cost(49152, 576)],
        "gaussian": gaussian_recall(124160, 5120, 1024),
    }
    print(json.dumps(report, indent=1), flush=True)
    if chosen.json:
        chosen.json.write_text(json.dumps(report, indent=1))


if __name__ == "__main__":
    main()
