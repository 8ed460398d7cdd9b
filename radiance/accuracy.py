"""`radiance accuracy --model PATH`: does the 2-bit head of this model rank well? Measured on hidden states of held-out text.

For every scheme of schemes.py a line: relative errors of weights and logits; the share of positions whose exact argmax is
among the coarse top r; the share whose 16 best are all within the coarse top 64; agreement of the reranked winner with the
stock argmax, and its misses by class; bits a weight; seconds to quantise.
"""

from __future__ import annotations

import argparse
import json
import platform
import shlex
import sys
from collections.abc import Sequence
from dataclasses import asdict
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

from radiance import hidden, provenance, recall, schemes
from radiance.errors import RadianceError
from radiance.settings import DEFAULT_RERANK
from radiance.source import Source

POSITIONS = 8192
RERANKS = (1, 8, 32, 64, 128)
#: the texts of a source checkout; an installed package has none
FIXTURE = Path(__file__).parent.parent / "tests" / "data" / "accuracy"
#: exit code: the model, a text or a file of states cannot be used
UNUSABLE = 66
Raw = argparse.RawDescriptionHelpFormatter


def main(argv: Sequence[str] | None = None) -> int:
    args = parser().parse_args(argv)
    try:
        report = run(args, command("radiance accuracy", argv))
    except RadianceError as error:
        print(f"radiance accuracy: {error}", file=sys.stderr)
        return UNUSABLE
    print("\n" + table(report) + "\n\n" + kinds_table(report))
    write(args.json, report)
    return 0


def parser() -> argparse.ArgumentParser:
    found = argparse.ArgumentParser("radiance accuracy", description=__doc__, formatter_class=Raw)
    common(found)
    found.add_argument("--rerank", dest="reranks", type=numbers, default=list(RERANKS), metavar="R,R,...",
                       help=f"values of r [{','.join(map(str, RERANKS))}]")  # fmt: skip
    found.add_argument("--calibration", type=Path, metavar="FILE", help="hidden states, .npy or .safetensors [those of "
                       "the calibration texts]")  # fmt: skip
    found.add_argument("--save-hidden", type=Path, metavar="FILE", help="keep the calibration states, .safetensors")
    found.add_argument("--schemes", type=_schemes, default=list(schemes.SCHEMES), help=f"[{','.join(schemes.SCHEMES)}]")
    return found


def common(found: argparse.ArgumentParser, *, is_required: bool = True) -> None:
    """The options that `accuracy` and `tune --rerank` share."""
    found.add_argument("--model", type=Path, required=is_required, help="folder of a transformers checkpoint")
    found.add_argument("--text", type=Path, default=FIXTURE, help="folder of KIND-test.txt and KIND-calibration.txt "
                       "[default: the texts of the source checkout]")  # fmt: skip
    found.add_argument("--positions", type=_positive, default=POSITIONS, help=f"held-out positions [{POSITIONS}]")
    found.add_argument("--device", default="cpu", help="cpu (fp32) or cuda (bf16) [cpu]")
    found.add_argument("--threads", type=_positive, help="of torch, on the CPU")
    found.add_argument("--json", type=Path, metavar="OUT", help="write the report here")
    found.add_argument("--note", default="", help="a remark for the report, such as where the weights come from")


def run(args: argparse.Namespace, command: str) -> dict[str, Any]:
    """The report as JSON will hold it; a line on stdout for each scheme as it is done."""
    report, model, test = prepare(args, command)
    calibration: torch.Tensor | None = None
    if "calibrated" in args.schemes or args.save_hidden:
        if args.calibration:
            calibration = hidden.read(args.calibration, test.x.shape[1])
        else:
            calibration = hidden.collect(model, args.text, "calibration", args.positions).x
        report["calibration_positions"] = len(calibration)
        if args.save_hidden:
            hidden.save(args.save_hidden, calibration)
    source, n_valid = Source(model.weight.bfloat16()), model.n_valid
    del model
    x = test.x.to(source.weight.device)
    print(f"stock head [{source.n}, {source.k}] on {len(x)} positions", flush=True)
    true = recall.truth(source, x, n_valid)
    for name in args.schemes:
        built = schemes.build(name, source, n_valid, calibration)
        parts, begin = {}, 0
        for kind, count in test.kinds.items():
            here = slice(begin, begin + count)
            parts[kind] = recall.measure(built, source, x[here], true[here], n_valid, args.reranks)
            begin += count
        found = recall.total(list(parts.values()))
        weight, logit = recall.errors(built, source, x, n_valid)
        row = {
            "scheme": name,
            "label": schemes.SCHEMES[name][0],
            "weight_error": round(weight, 4),
            "logit_error": round(logit, 4),
            **asdict(found),
            "inside_by_kind": {kind: part.inside for kind, part in parts.items()},
            "bits_per_weight": round(built.bits, 4),
            "padding_bits_per_weight": round(built.padding, 4),
            "quantise_seconds": round(built.seconds, 2),
        }
        report["schemes"].append(row)
        print(table({**report, "schemes": [row]}).splitlines()[-1], flush=True)
        del built
    return report


def prepare(args: argparse.Namespace, command: str) -> tuple[dict[str, Any], hidden.Model, hidden.States]:
    """The model, the states of its test texts, and the beginning of a report."""
    if args.threads:
        torch.set_num_threads(args.threads)
    if args.device.startswith("cuda") and not torch.cuda.is_available():
        raise hidden.InputError("this torch sees no GPU; use --device cpu")
    print(f"hidden states of {args.model.name}", flush=True)
    model = hidden.load(args.model, args.device)
    n, k = model.weight.shape
    if max(args.reranks) > model.n_valid:
        raise hidden.InputError(f"r = {max(args.reranks)} of a head with {model.n_valid} tokens")
    test = hidden.collect(model, args.text, "test", args.positions)
    if len(test.x) < args.positions:
        print(f"note: the texts have {len(test.x)} positions, {args.positions} were asked for", file=sys.stderr)
    report = {
        "model": args.model.resolve().name,
        "note": args.note,
        "head": {"n": n, "k": k, "tokens": model.n_valid, "dtype": "bfloat16"},
        "positions": len(test.x),
        "positions_of": test.kinds,
        "calibration_positions": 0,
        "device": torch.cuda.get_device_name() if args.device.startswith("cuda") else f"cpu {platform.machine()}",
        "threads": torch.get_num_threads(),
        "versions": {name: metadata.version(name) for name in ("radiance-vllm", "torch", "transformers")},
        "commit": provenance.commit(),
        "command": command,
        "schemes": [],
    }
    return report, model, test


def table(report: dict[str, Any]) -> str:
    """Markdown: one line a scheme. Shares of positions; agreement and misses at the shipped r, if it was measured."""
    reranks = report["schemes"][0]["reranks"]
    shown = DEFAULT_RERANK if DEFAULT_RERANK in reranks else reranks[-1]
    head = ["scheme", "weight error", "logit error", *(f"top {r}" for r in reranks), "16 in 64", f"agrees at {shown}",
            "ties", "misses", "bits", "padding", "seconds"]  # fmt: skip
    lines = ["| " + " | ".join(head) + " |", "|---" + "|--:" * (len(head) - 1) + "|"]
    for row in report["schemes"]:
        count, at = row["positions"], row["reranks"].index(shown)
        cells = [row["label"], f"{row['weight_error']:.3f}", f"{row['logit_error']:.3f}"]
        cells += [f"{inside / count:.4f}" for inside in row["inside"]]
        cells += [f"{row['complete_top_k'] / count:.3f}", f"{row['agreed'][at] / count:.4f}", str(row["tied"][at])]
        cells += [str(row["missed"][at]), f"{row['bits_per_weight']:.3f}", f"{row['padding_bits_per_weight']:.3f}"]
        lines.append("| " + " | ".join([*cells, f"{row['quantise_seconds']:.1f}"]) + " |")
    return "\n".join(lines)


def kinds_table(report: dict[str, Any]) -> str:
    """Markdown: the share of each kind of text whose exact argmax is among the coarse top r, for the last scheme without
    calibration."""
    row = next((row for row in reversed(report["schemes"]) if row["scheme"] != "calibrated"), report["schemes"][-1])
    lines = [
        "| " + " | ".join([f"scheme {row['scheme']}, by kind of text", *(f"top {r}" for r in row["reranks"])]) + " |"
    ]
    lines.append("|---" + "|--:" * len(row["reranks"]) + "|")
    for kind, inside in row["inside_by_kind"].items():
        shares = [f"{one / max(1, report['positions_of'][kind]):.4f}" for one in inside]
        lines.append("| " + " | ".join([kind, *shares]) + " |")
    return "\n".join(lines)


def write(path: Path | None, report: dict[str, Any]) -> None:
    if path:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(report, indent=1) + "\n")
        print(f"\nreport: {path}")


def command(prog: str, argv: Sequence[str] | None) -> str:
    """What reproduces the report; of absolute paths only the last part, since the rest means nothing elsewhere."""
    words = sys.argv[1:] if argv is None else argv
    return shlex.join([*prog.split(), *(Path(word).name if word.startswith("/") else word for word in words)])


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text} is not at least 1")
    return value


def numbers(text: str) -> list[int]:
    return sorted({_positive(part) for part in text.split(",")})


def _schemes(text: str) -> list[str]:
    names = text.split(",")
    for name in names:
        if name not in schemes.SCHEMES:
            raise argparse.ArgumentTypeError(f"{name!r} is not one of {', '.join(schemes.SCHEMES)}")
    return names


if __name__ == "__main__":
    raise SystemExit(main())
