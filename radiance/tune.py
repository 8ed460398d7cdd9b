"""`radiance tune`: the fastest launches of the draft head on the GPU at hand, into this machine's cache.

`radiance tune --rerank --model PATH`: the smallest r at which the reranked winner is the stock argmax often enough. Counted
on hidden states of held-out text, with the head packed as it ships on the device at hand. A position whose winner is within
one bf16 ulp of the stock maximum, but another id, counts against r as well and is shown apart.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import torch

from radiance import accuracy, launches, measure, pack, recall, schemes, tables
from radiance.errors import RadianceError
from radiance.measure import SHAPES
from radiance.source import Source

RERANKS = (8, 16, 24, 32, 48, 64, 96, 128, 192, 256)
AGREEMENT = 0.995
#: exit code: no r of those tried is enough
NOT_FOUND = 1
#: exit code of launches without a GPU
NO_GPU = 69


def main(argv: Sequence[str] | None = None) -> int:
    given = parser()
    args = given.parse_args(argv)
    if args.rerank != (args.model is not None):
        given.error("--rerank needs --model, and --model belongs to --rerank")
    if not args.rerank:
        return tune_launches(args.shape or SHAPES, accuracy.command("radiance tune", argv))
    try:
        report = run(args, accuracy.command("radiance tune", argv))
    except RadianceError as error:
        print(f"radiance tune: {error}", file=sys.stderr)
        return accuracy.UNUSABLE
    print(table(report))
    accuracy.write(args.json, report)
    if report["rerank"] is None:
        print(
            f"\nno r of those tried agrees on {args.agreement:.2%}: keep the 2-bit head off, or ask for less",
            file=sys.stderr,
        )
        return NOT_FOUND
    print(f"\nThe line for the profile:\n\nrerank: {report['rerank']}")
    return 0


def tune_launches(shapes: Sequence[tuple[int, int]], command: str) -> int:
    """Measure, write the launch table, say where it is."""
    if not torch.cuda.is_available():
        print("radiance tune needs a GPU to measure launches on; this torch sees none", file=sys.stderr)
        return NO_GPU
    try:
        path = tables.write(launches.table(shapes, command, print))
    except (RadianceError, OSError) as error:
        print(f"radiance tune: {error}", file=sys.stderr)
        return accuracy.UNUSABLE
    print(f"\n{path}: used from the next start on; remove it to return to the built-in table")
    return 0


def parser() -> argparse.ArgumentParser:
    found = argparse.ArgumentParser("radiance tune", description=__doc__, formatter_class=accuracy.Raw)
    found.add_argument("--shape", action="append", type=measure.shape, metavar="NxK",
                       help="launches: a head's n x k, such as 124160x5120; may be repeated [those of `radiance bench`]")  # fmt: skip
    found.add_argument(
        "--rerank", action="store_true", help="tune r, the rows rescored exactly, for --model; what follows is for that"
    )
    accuracy.common(found, is_required=False)
    found.add_argument("--reranks", type=accuracy.numbers, default=list(RERANKS), metavar="R,R,...",
                       help=f"values to try [{','.join(map(str, RERANKS))}]")  # fmt: skip
    found.add_argument("--agreement", type=_share, default=AGREEMENT, help=f"wanted share of positions [{AGREEMENT}]")
    found.add_argument("--layout", choices=("quarter", "fragment"), help="storage layout [that of the device]")
    return found


def run(args: argparse.Namespace, command: str) -> dict[str, Any]:
    """The report, with `rerank`: the smallest r that is enough, None if none is."""
    report, model, test = accuracy.prepare(args, command)
    source = Source(model.weight.bfloat16())
    x, n_valid = test.x.to(source.weight.device), model.n_valid
    del model
    layout = args.layout or pack.choose(source.n, source.k, x.device).layout
    built = schemes.shipped(source, n_valid, layout, None)
    found = recall.measure(built, source, x, recall.truth(source, x, n_valid), n_valid, args.reranks)
    report["schemes"] = [{"scheme": layout, **asdict(found)}]
    report["agreement"] = args.agreement
    report["rerank"] = smallest(found, args.agreement)
    return report


def smallest(found: recall.Recall, agreement: float) -> int | None:
    """The least r whose share of agreeing positions is at least `agreement`."""
    enough = [r for r, agreed in zip(found.reranks, found.agreed, strict=True) if agreed >= agreement * found.positions]
    return min(enough, default=None)


def table(report: dict[str, Any]) -> str:
    """Markdown: one line for each r."""
    row = report["schemes"][0]
    count = row["positions"]
    lines = [
        f"\n{report['model']}, layout {row['scheme']}, {count} positions\n",
        "| r | agrees | winner in coarse top r | ties within one bf16 ulp | candidate misses |",
        "|--:|--:|--:|--:|--:|",
    ]
    for i, r in enumerate(row["reranks"]):
        mark = " <-" if r == report["rerank"] else ""
        lines.append(
            f"| {r} | {row['agreed'][i] / count:.4f} | {row['inside'][i] / count:.4f} | {row['tied'][i]} | "
            f"{row['missed'][i]} |{mark}"
        )
    return "\n".join(lines)


def _share(text: str) -> float:
    value = float(text)
    if not 0 < value <= 1:
        raise argparse.ArgumentTypeError(f"{text} is not a share in (0, 1]")
    return value


if __name__ == "__main__":
    raise SystemExit(main())
