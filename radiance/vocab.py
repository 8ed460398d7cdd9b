"""Draft vocabularies: the token ids a drafter may propose, so that only those rows of its head are packed.

    python -m radiance.vocab build --tokenizer FOLDER --corpus FILE... --size 32768 -o ids.txt

A file holds one id a line (text; blank lines and # comments are skipped) or is a one-dimensional integer .npy. A smaller
vocabulary makes the draft head faster in proportion; a token that is not in it can never be drafted, which costs
acceptance, never output. End-of-sequence ids are always in.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

import torch

from radiance.errors import UnsupportedHead


def read(path: Path, n: int) -> torch.Tensor:
    """Ids int64 [count], ascending, each once, from `path`. `n`: size of the vocabulary.

    Raises UnsupportedHead("draft_vocab") naming the file and what is wrong: not readable, empty, an id out of range or
    twice.
    """
    listed = _parse(path)
    if not listed:
        raise _wrong(path, "it holds no ids; give one id a line")
    for token in listed:
        if not 0 <= token < n:
            what = f"id {token} is outside the model's vocabulary 0..{n - 1}; build it with this model's tokenizer"
            raise _wrong(path, what)
    ids = torch.tensor(sorted(listed), dtype=torch.int64)
    again = ids[1:][ids[1:] == ids[:-1]]
    if len(again):
        twice = int(again[0])
        raise _wrong(path, f"id {twice} is listed {int((ids == twice).sum())} times; list each id once")
    return ids


def shard(ids: torch.Tensor, start: int, stop: int, rerank: int, always: Iterable[int] = ()) -> torch.Tensor:
    """Local row numbers int32 [count], ascending, of the ids in [start, stop); `always` are added. Raises UnsupportedHead
    if the whole list is smaller than `rerank`, or this shard has none of it."""
    ids = torch.tensor(sorted({*ids.tolist(), *always}), dtype=torch.int64)
    if len(ids) < rerank:
        raise UnsupportedHead(
            "draft_vocab", f"the draft vocabulary has {len(ids)} ids, fewer than the {rerank} rows reranked"
        )
    local = ids[(ids >= start) & (ids < stop)] - start
    if len(local) == 0:
        raise UnsupportedHead("draft_vocab", f"the draft vocabulary has no id in this rank's share {start}..{stop - 1}")
    return local.int()


def _parse(path: Path) -> list[int]:
    try:
        if path.suffix == ".npy":
            import numpy

            array = numpy.load(path, allow_pickle=False)
            if array.ndim != 1 or array.dtype.kind not in "iu":
                raise _wrong(
                    path, f"it is {array.dtype} {array.shape}; a list of ids is one-dimensional and of integers"
                )
            return [int(token) for token in array]
        lines = path.read_text().splitlines()
    except UnsupportedHead:
        raise
    except Exception as error:  # numpy raises many kinds for files that are no array
        raise _wrong(path, f"cannot be read: {error}") from error
    ids = []
    for number, line in enumerate(lines, 1):
        text = line.split("#", 1)[0].strip()
        if text:
            try:
                ids.append(int(text))
            except ValueError:
                raise _wrong(path, f"line {number}: {text!r} is no token id; give one whole number a line") from None
    return ids


def _wrong(path: Path, what: str) -> UnsupportedHead:
    return UnsupportedHead("draft_vocab", f"RADIANCE_DRAFT_VOCAB={path}: {what}")


def count(tokenizer: object, files: Sequence[Path]) -> Counter[int]:
    """How often each token id occurs in the files."""
    counts: Counter[int] = Counter()
    for path in files:
        text = path.read_text(errors="replace")
        for start in range(0, len(text), 1 << 20):
            counts.update(tokenizer(text[start : start + (1 << 20)], add_special_tokens=False)["input_ids"])  # type: ignore[operator]
    return counts


def choose(counts: Counter[int], always: Iterable[int], size: int) -> list[int]:
    """The `size` ids: all of `always`, then the most frequent, ties to the lowest id. Ascending."""
    kept = set(always)
    for token, _ in sorted(counts.items(), key=lambda item: (-item[1], item[0])):
        if len(kept) >= size:
            break
        kept.add(token)
    return sorted(kept)


def coverage(counts: Counter[int], ids: Iterable[int]) -> float:
    """Share of counted tokens that are in `ids`."""
    total = counts.total()
    return sum(counts[token] for token in ids) / total if total else 0.0


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="radiance vocab", description="Draft vocabularies.")
    build = parser.add_subparsers(required=True).add_parser(
        "build", help="count a corpus, keep its most frequent tokens"
    )
    build.add_argument("--tokenizer", required=True, help="folder or hub id of the model's tokenizer")
    build.add_argument("--corpus", required=True, nargs="+", type=Path, help="text files; your own traffic is best")
    build.add_argument(
        "--held-out", nargs="*", type=Path, default=[], help="other text files, for the coverage that counts"
    )
    build.add_argument("--size", required=True, type=int, help="how many ids to keep")
    build.add_argument("-o", "--output", required=True, type=Path)
    args = parser.parse_args(argv)
    missing = [str(path) for path in [*args.corpus, *args.held_out] if not path.is_file()]
    if missing or args.size < 1:
        print(
            f"radiance vocab: {'not a file: ' + ', '.join(missing) if missing else '--size must be at least 1'}",
            file=sys.stderr,
        )
        return 2
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(args.tokenizer)
    counts = count(tokenizer, args.corpus)
    ids = choose(counts, tokenizer.all_special_ids, args.size)
    lines = [
        f"# {len(ids)} of {len(tokenizer)} ids, built from {len(args.corpus)} files, {counts.total()} tokens",
        *map(str, ids),
    ]
    args.output.write_text("\n".join(lines) + "\n")
    print(f"{len(ids)} of {len(tokenizer)} ids in {args.output}")
    print(f"coverage of the corpus: {coverage(counts, ids):.4f} of {counts.total()} tokens")
    if args.held_out:
        held = count(tokenizer, args.held_out)
        print(f"coverage of held-out text: {coverage(held, ids):.4f} of {held.total()} tokens")
    if len(ids) < args.size:
        print(f"note: the corpus has only {len(ids)} distinct tokens, fewer than --size {args.size}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
