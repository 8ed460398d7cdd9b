"""Inputs of a model's LM head on given texts: for `radiance accuracy` and `radiance tune`, and as calibration data.

Any transformers checkpoint with an output embedding: a forward pre-hook on that module takes what goes into it. Texts are
files KIND-test.txt and KIND-calibration.txt of a folder, never of the same source. In the kind `chat` a file holds
conversations of turns `<user>` and `<assistant>`, each marker a line of its own; they go through the model's chat template.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from radiance.errors import RadianceError

#: tokens of one window; the first position of each, which has seen nothing, is left out
WINDOW = 512


class InputError(RadianceError):
    """A model, text or calibration file that cannot be used."""


@dataclass
class States:
    """`x` bf16 [p, k], on the CPU; `kinds`: name of a text -> its positions, in this order."""

    x: torch.Tensor
    kinds: dict[str, int]


@dataclass
class Model:
    """A checkpoint on a device. `head`: its output embedding; `n_valid` rows of it are tokens, the rest padding."""

    body: Any
    tokenizer: Any
    head: torch.nn.Module
    n_valid: int

    @property
    def weight(self) -> torch.Tensor:
        """[n, k] as the checkpoint was loaded."""
        weight = self.head.weight
        assert isinstance(weight, torch.Tensor)
        return weight.detach()


def load(path: Path, device: str) -> Model:
    """fp32 on the CPU, bf16 on a GPU. Raises InputError."""
    if not (path / "config.json").is_file():
        raise InputError(f"{path} is not a transformers checkpoint: it has no config.json (--model)")
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from transformers.utils import logging

    logging.disable_progress_bar()
    try:
        tokenizer = AutoTokenizer.from_pretrained(path, local_files_only=True)
        dtype = torch.bfloat16 if device.startswith("cuda") else torch.float32
        body = AutoModelForCausalLM.from_pretrained(path, dtype=dtype, local_files_only=True).to(device).eval()
    except (OSError, ValueError, KeyError, ImportError) as error:
        raise InputError(f"transformers cannot load {path}: {error} (--model)") from error
    head = body.get_output_embeddings()
    if head is None or getattr(head, "weight", None) is None or head.weight.dim() != 2:
        raise InputError(f"{path}: {type(body).__name__} has no output embedding with an [n, k] weight (--model)")
    if getattr(head, "bias", None) is not None:
        raise InputError(f"{path}: its head has a bias, which the 2-bit head does not know (--model)")
    n_valid = min(int(body.config.get_text_config().vocab_size), len(head.weight))
    return Model(body, tokenizer, head, n_valid)


def collect(model: Model, folder: Path, split: str, positions: int) -> States:
    """States of `positions` positions (fewer if the texts are shorter) of all *-{split}.txt, the same number of each."""
    paths = sorted(folder.glob(f"*-{split}.txt"))
    if not paths:
        raise InputError(f"{folder} has no file KIND-{split}.txt, such as prose-{split}.txt (--text)")
    states: list[torch.Tensor] = []
    kinds: dict[str, int] = {}
    told = time.monotonic()
    for index, path in enumerate(paths):
        kind = path.name.removesuffix(f"-{split}.txt")
        wanted = -(-(positions - sum(kinds.values())) // (len(paths) - index))
        parts: list[torch.Tensor] = []
        for ids in _spread(windows(model.tokenizer, path, kind), wanted):
            parts.append(inputs(model, ids)[1:].cpu())
            if time.monotonic() - told > 15:
                told = time.monotonic()
                print(f"    {path.name}: {sum(map(len, parts))} of {wanted}", file=sys.stderr, flush=True)
        found = torch.cat(parts) if parts else torch.empty(0, model.weight.shape[1])
        found = found[:wanted].bfloat16()
        states.append(found)
        kinds[kind] = len(found)
    return States(torch.cat(states), kinds)


def windows(tokenizer: Any, path: Path, kind: str) -> list[list[int]]:
    """Token ids, at most WINDOW in each: runs of the text, or one for each conversation."""
    text = path.read_text(encoding="utf-8")
    if kind == "chat":
        return [_encode(tokenizer, talk)[:WINDOW] for talk in conversations(text)]
    start = tokenizer("").input_ids[:1] if tokenizer("").input_ids[:1] == [tokenizer.bos_token_id] else []
    ids = tokenizer(text, verbose=False).input_ids[len(start) :]
    step = WINDOW - len(start)
    return [start + ids[i : i + step] for i in range(0, len(ids), step)]


def conversations(text: str) -> list[list[dict[str, str]]]:
    """Turns of each conversation; one begins with every `<user>` that follows an answer."""
    talks: list[list[dict[str, str]]] = []
    for line in text.splitlines():
        if line in ("<user>", "<assistant>"):
            role = line[1:-1]
            if role == "user" and (not talks or talks[-1][-1]["role"] == "assistant"):
                talks.append([])
            if not talks:
                raise InputError("a conversation begins with a line <user> (chat text)")
            talks[-1].append({"role": role, "content": ""})
        elif talks:
            turn = talks[-1][-1]
            turn["content"] += ("\n" if turn["content"] else "") + line
    return talks


def inputs(model: Model, ids: Sequence[int]) -> torch.Tensor:
    """What goes into the head: [tokens, k]. The head itself sees the last position only, so no [tokens, n] row is made."""
    seen: list[torch.Tensor] = []

    def take(_: object, args: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
        seen.append(args[0].detach().reshape(-1, args[0].shape[-1]))
        return (args[0][..., -1:, :], *args[1:])

    handle = model.head.register_forward_pre_hook(take)
    try:
        with torch.no_grad():
            model.body(input_ids=torch.tensor([ids], device=model.weight.device), use_cache=False)
    finally:
        handle.remove()
    return torch.cat(seen)


def save(path: Path, states: torch.Tensor) -> None:
    """Calibration states bf16 [p, k], as `read` takes them."""
    from safetensors.torch import save_file

    save_file({"hidden": states.contiguous()}, path)


def read(path: Path, k: int) -> torch.Tensor:
    """[p, k] from .npy (no pickle) or .safetensors (the tensor `hidden`). Raises InputError."""
    try:
        if path.suffix == ".npy":
            found = torch.from_numpy(np.load(path, allow_pickle=False))
        elif path.suffix == ".safetensors":
            from safetensors.torch import load_file

            found = load_file(path)["hidden"]
        else:
            raise InputError(f"{path}: calibration is a .npy or .safetensors file (--calibration)")
    except KeyError as error:
        raise InputError(f"{path} has no tensor named 'hidden' (--calibration)") from error
    except InputError:
        raise
    except Exception as error:  # each reader has its own kinds of error for a file that is not its format
        raise InputError(f"{path} cannot be read: {error} (--calibration)") from error
    if found.dim() != 2 or found.shape[1] != k or not len(found) or not found.is_floating_point():
        raise InputError(
            f"{path} holds {found.dtype} {tuple(found.shape)}; hidden states of this head are floats [positions, {k}]"
            " (--calibration)"
        )
    if not bool(found.isfinite().all()):
        raise InputError(f"{path} {tuple(found.shape)} holds NaN or infinity (--calibration)")
    return found


def _encode(tokenizer: Any, talk: list[dict[str, str]]) -> list[int]:
    if tokenizer.chat_template:
        text = tokenizer.apply_chat_template(talk, tokenize=False)
        return list(tokenizer(text, add_special_tokens=False).input_ids)
    return list(tokenizer("\n".join(f"{turn['role']}: {turn['content']}" for turn in talk)).input_ids)


def _spread(parts: list[list[int]], positions: int) -> list[list[int]]:
    """Evenly spread windows with at least `positions` positions that count, all if there are no more."""
    parts = [part for part in parts if len(part) > 1]
    total = sum(len(part) - 1 for part in parts)
    take = min(len(parts), -(-positions * len(parts) // max(1, total)))
    while take < len(parts):
        chosen = [parts[i * len(parts) // take] for i in range(take)]
        if sum(len(part) - 1 for part in chosen) >= positions:
            return chosen
        take += 1
    return parts
