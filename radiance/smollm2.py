"""SmolLM2-135M-Instruct: its GGUF file -> a bf16 safetensors checkpoint that vLLM loads as a plain Llama.

    python -m radiance.smollm2 FILE.gguf OUT_FOLDER

A script of its own because it needs torch, and the launcher that calls it (launcher/smollm2.py) must not. vLLM could read
the GGUF itself, but then the head would be quantised twice over and `n x k` bf16 rows, which is what a draft head is
made from, would never exist. Written by hand rather than through transformers: that would need accelerate as well, will
not save what it dequantised, and gives this tokeniser the wrong splitting of digits.

Needs numpy, torch, safetensors, tokenizers (all come with vLLM) and gguf.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
from gguf import GGUFReader, ReaderTensor
from gguf.quants import dequantize
from safetensors.torch import save_file
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

#: GGUF's name of a tensor inside "blk.I." -> the name inside "model.layers.I."
LAYER_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
TOP_NAMES = {"token_embd.weight": "model.embed_tokens.weight", "output_norm.weight": "model.norm.weight"}
#: GGUF token types that are markers, not text
CONTROL = 3


def main() -> None:
    if len(sys.argv) != 3:
        sys.exit("usage: python -m radiance.smollm2 FILE.gguf OUT_FOLDER")
    source, out = Path(sys.argv[1]), Path(sys.argv[2])
    out.mkdir(parents=True, exist_ok=True)
    reader = GGUFReader(source)
    fields: dict[str, Any] = {name: field.contents() for name, field in reader.fields.items()}
    if fields["general.architecture"] != "llama" or fields["tokenizer.ggml.pre"] != "smollm":
        sys.exit(f"{source}: not a SmolLM2 file: {fields['general.architecture']!r}, {fields['tokenizer.ggml.pre']!r}")
    config = _config(fields)
    save_file(_tensors(reader, config), out / "model.safetensors", metadata={"format": "pt"})
    _write(out / "config.json", config)
    _write(
        out / "generation_config.json", {key: config[key] for key in ("bos_token_id", "eos_token_id", "pad_token_id")}
    )
    _tokenizer(fields).save(str(out / "tokenizer.json"))
    _write(out / "tokenizer_config.json", _tokenizer_config(fields, config))


def _config(fields: dict[str, Any]) -> dict[str, Any]:
    hidden, heads = int(fields["llama.embedding_length"]), int(fields["llama.attention.head_count"])
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "dtype": "bfloat16",
        "vocab_size": int(fields["llama.vocab_size"]),
        "hidden_size": hidden,
        "intermediate_size": int(fields["llama.feed_forward_length"]),
        "num_hidden_layers": int(fields["llama.block_count"]),
        "num_attention_heads": heads,
        "num_key_value_heads": int(fields["llama.attention.head_count_kv"]),
        "head_dim": hidden // heads,
        "hidden_act": "silu",
        "max_position_embeddings": int(fields["llama.context_length"]),
        # GGUF stores float32; the printed digits beyond its precision would be noise.
        "rms_norm_eps": float(f"{fields['llama.attention.layer_norm_rms_epsilon']:.7g}"),
        "rope_theta": float(fields["llama.rope.freq_base"]),
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": True,
        "bos_token_id": int(fields["tokenizer.ggml.bos_token_id"]),
        "eos_token_id": int(fields["tokenizer.ggml.eos_token_id"]),
        "pad_token_id": int(fields["tokenizer.ggml.padding_token_id"]),
    }


def _tensors(reader: GGUFReader, config: dict[str, Any]) -> dict[str, torch.Tensor]:
    """Every tensor, dequantised to float32 and rounded once to bf16. The head is tied: no lm_head.weight."""
    heads = {"attn_q": config["num_attention_heads"], "attn_k": config["num_key_value_heads"]}
    tensors = {}
    for tensor in reader.tensors:
        name, part = _name(tensor)
        values = dequantize(tensor.data, tensor.tensor_type).astype(np.float32, copy=False)
        if part in heads:
            values = _halves(values, heads[part])
        tensors[name] = torch.from_numpy(np.array(values)).to(torch.bfloat16)
    return tensors


def _name(tensor: ReaderTensor) -> tuple[str, str]:
    if tensor.name in TOP_NAMES:
        return TOP_NAMES[tensor.name], ""
    _, layer, part, suffix = tensor.name.split(".")
    return f"model.layers.{layer}.{LAYER_NAMES[part]}.{suffix}", part


def _halves(weight: np.ndarray, heads: int) -> np.ndarray:
    """Rows of q and k from GGUF's order (rotary pairs side by side) to the checkpoint's (first halves, second halves)."""
    rows, columns = weight.shape
    return weight.reshape(heads, rows // heads // 2, 2, columns).swapaxes(1, 2).reshape(rows, columns)


def _tokenizer(fields: dict[str, Any]) -> Tokenizer:
    """Byte-level BPE that splits numbers into single digits, as the model was trained."""
    tokens: list[str] = fields["tokenizer.ggml.tokens"]
    merges = [(left, right) for left, _, right in (pair.partition(" ") for pair in fields["tokenizer.ggml.merges"])]
    tokenizer = Tokenizer(models.BPE(vocab={token: index for index, token in enumerate(tokens)}, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    kinds = fields["tokenizer.ggml.token_type"]
    markers = [token for token, kind in zip(tokens, kinds, strict=True) if kind == CONTROL]
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in markers])
    return tokenizer


def _tokenizer_config(fields: dict[str, Any], config: dict[str, Any]) -> dict[str, Any]:
    tokens = fields["tokenizer.ggml.tokens"]
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": config["max_position_embeddings"],
        "clean_up_tokenization_spaces": False,
        "bos_token": tokens[config["bos_token_id"]],
        "eos_token": tokens[config["eos_token_id"]],
        "pad_token": tokens[config["pad_token_id"]],
        "unk_token": tokens[int(fields["tokenizer.ggml.unknown_token_id"])],
        "chat_template": fields["tokenizer.chat_template"],
    }


def _write(path: Path, value: dict[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=2) + "\n")


if __name__ == "__main__":
    main()
