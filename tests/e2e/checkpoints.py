"""Checkpoints whose acceptance is known before they are served. Raw tensors, no hub.

`tiny_qwen35`: a Qwen3.5 (three gated-delta-net layers, one full attention) with its MTP drafter. Row perm[t] of the head
is the embedding of t, so the target is a permutation bigram model with large logit gaps, and the drafter (fc = [I, 0] plus
noise) predicts it often but not always. `dflash`: a DFlash drafter for it with random weights and no lm_head of its own.
"""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file


@dataclass(frozen=True)
class Shape:
    """Sizes of a Qwen3.5 text model. `layers`: linear_attention or full_attention, one for each."""

    hidden: int = 512
    inter: int = 1024
    vocab: int = 4096
    heads: int = 4
    kv_heads: int = 2
    head_dim: int = 64
    layers: tuple[str, ...] = ("linear_attention",) * 3 + ("full_attention",)
    linear_dim: int = 64
    linear_key_heads: int = 2
    linear_value_heads: int = 4
    linear_kernel: int = 4


def full(hidden: int, vocab: int, inter: int) -> Shape:
    """Two layers in sizes that GPU kernels take: 256 an attention head, 128 a head of the delta net."""
    return Shape(hidden, inter, vocab, max(hidden // 512, 2), 2, 256, ("linear_attention", "full_attention"), 128, 4, 8)


TINY = Shape()
HIDDEN, INTER, VOCAB, HEADS, KV_HEADS, HEAD_DIM = (
    TINY.hidden, TINY.inter, TINY.vocab, TINY.heads, TINY.kv_heads, TINY.head_dim,
)  # fmt: skip
LAYERS = list(TINY.layers)


def tiny_qwen35(out: Path, noise: float = 6.0, seed: int = 0, head_scale: float = 0.05) -> Path:
    """Write target and MTP drafter. `noise` scales the layers against the bigram (6: 562 of 624 drafts accepted);
    `head_scale` sharpens the distribution (0.05: greedy and T=1 hardly differ)."""
    out.mkdir(parents=True)
    config, tensors, _ = qwen35(TINY, noise, seed, head_scale)
    save(out, config, tensors)
    _tokenizer(out)
    return out


def qwen35(
    shape: Shape, noise: float, seed: int, head_scale: float, device: str = "cpu"
) -> tuple[dict[str, Any], dict[str, torch.Tensor], torch.Tensor]:
    """config.json, tensors, and the permutation: perm[t] is what follows t."""
    generator = torch.Generator(device).manual_seed(seed)
    tensors: dict[str, torch.Tensor] = {}
    out_std = 0.02 * noise  # of the matrices that write to the residual stream
    hidden = shape.hidden

    def normal(*size: int, std: float = 0.02) -> torch.Tensor:
        return (torch.randn(*size, generator=generator, device=device) * std).bfloat16()

    def zeros(size: int) -> torch.Tensor:  # Qwen3.5 norms multiply by 1 + w
        return torch.zeros(size, dtype=torch.bfloat16, device=device)

    def mlp(prefix: str) -> None:
        tensors[prefix + "mlp.gate_proj.weight"] = normal(shape.inter, hidden)
        tensors[prefix + "mlp.up_proj.weight"] = normal(shape.inter, hidden)
        tensors[prefix + "mlp.down_proj.weight"] = normal(hidden, shape.inter, std=out_std)
        tensors[prefix + "input_layernorm.weight"] = zeros(hidden)
        tensors[prefix + "post_attention_layernorm.weight"] = zeros(hidden)

    def attention(prefix: str) -> None:
        prefix += "self_attn."
        tensors[prefix + "q_proj.weight"] = normal(shape.heads * shape.head_dim * 2, hidden)  # q and the output gate
        tensors[prefix + "k_proj.weight"] = normal(shape.kv_heads * shape.head_dim, hidden)
        tensors[prefix + "v_proj.weight"] = normal(shape.kv_heads * shape.head_dim, hidden)
        tensors[prefix + "o_proj.weight"] = normal(hidden, shape.heads * shape.head_dim, std=out_std)
        tensors[prefix + "q_norm.weight"] = zeros(shape.head_dim)
        tensors[prefix + "k_norm.weight"] = zeros(shape.head_dim)

    def delta_net(prefix: str) -> None:
        prefix += "linear_attn."
        heads = shape.linear_value_heads
        keys, values = shape.linear_key_heads * shape.linear_dim, heads * shape.linear_dim
        tensors[prefix + "in_proj_qkv.weight"] = normal(2 * keys + values, hidden)
        tensors[prefix + "in_proj_z.weight"] = normal(values, hidden)
        tensors[prefix + "in_proj_b.weight"] = normal(heads, hidden)
        tensors[prefix + "in_proj_a.weight"] = normal(heads, hidden)
        tensors[prefix + "conv1d.weight"] = normal(2 * keys + values, 1, shape.linear_kernel, std=0.3)
        tensors[prefix + "dt_bias"] = torch.ones(heads, dtype=torch.bfloat16)
        tensors[prefix + "A_log"] = torch.log(torch.linspace(1, 8, heads))
        tensors[prefix + "norm.weight"] = torch.ones(shape.linear_dim)
        tensors[prefix + "out_proj.weight"] = normal(hidden, values, std=out_std)

    embedding = torch.randn(shape.vocab, hidden, generator=generator, device=device)
    permutation = torch.randperm(shape.vocab, generator=generator, device=device)
    head = torch.empty_like(embedding)
    head[permutation] = embedding
    tensors["model.embed_tokens.weight"] = embedding.bfloat16()
    tensors["lm_head.weight"] = (head * head_scale).bfloat16()
    for index, kind in enumerate(shape.layers):
        prefix = f"model.layers.{index}."
        attention(prefix) if kind == "full_attention" else delta_net(prefix)
        mlp(prefix)
    tensors["model.norm.weight"] = zeros(hidden)
    attention("mtp.layers.0.")
    mlp("mtp.layers.0.")
    join = torch.randn(hidden, 2 * hidden, generator=generator, device=device) * out_std
    join[:, :hidden] += torch.eye(hidden, device=device)
    tensors["mtp.fc.weight"] = join.bfloat16()
    for name in ("norm", "pre_fc_norm_hidden", "pre_fc_norm_embedding"):
        tensors[f"mtp.{name}.weight"] = zeros(hidden)

    config = _config("Qwen3_5ForCausalLM", "qwen3_5_text", shape) | {
        "num_hidden_layers": len(shape.layers),
        "layer_types": list(shape.layers),
        "attn_output_gate": True,
        "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.25},
        "linear_conv_kernel_dim": shape.linear_kernel,
        "linear_key_head_dim": shape.linear_dim,
        "linear_value_head_dim": shape.linear_dim,
        "linear_num_key_heads": shape.linear_key_heads,
        "linear_num_value_heads": shape.linear_value_heads,
        "mtp_num_hidden_layers": 1,
        "mtp_use_dedicated_embeddings": False,
        "pad_token_id": 0,
    }
    return config, tensors, permutation


def dflash(out: Path, target: Path) -> Path:
    """Write a DFlash drafter for `target`. Its head is empty until vLLM shares the target's; nothing it drafts is accepted."""
    out.mkdir(parents=True)
    generator = torch.Generator().manual_seed(1)
    tensors: dict[str, torch.Tensor] = {}
    taps = [1, 2]

    def normal(*shape: int) -> torch.Tensor:
        return (torch.randn(*shape, generator=generator) * 0.02).bfloat16()

    def ones(size: int) -> torch.Tensor:
        return torch.ones(size, dtype=torch.bfloat16)

    for index in range(2):
        prefix = f"layers.{index}."
        tensors[prefix + "self_attn.q_proj.weight"] = normal(HEADS * HEAD_DIM, HIDDEN)
        tensors[prefix + "self_attn.k_proj.weight"] = normal(KV_HEADS * HEAD_DIM, HIDDEN)
        tensors[prefix + "self_attn.v_proj.weight"] = normal(KV_HEADS * HEAD_DIM, HIDDEN)
        tensors[prefix + "self_attn.o_proj.weight"] = normal(HIDDEN, HEADS * HEAD_DIM)
        tensors[prefix + "self_attn.q_norm.weight"] = ones(HEAD_DIM)
        tensors[prefix + "self_attn.k_norm.weight"] = ones(HEAD_DIM)
        tensors[prefix + "mlp.gate_proj.weight"] = normal(INTER, HIDDEN)
        tensors[prefix + "mlp.up_proj.weight"] = normal(INTER, HIDDEN)
        tensors[prefix + "mlp.down_proj.weight"] = normal(HIDDEN, INTER)
        tensors[prefix + "input_layernorm.weight"] = ones(HIDDEN)
        tensors[prefix + "post_attention_layernorm.weight"] = ones(HIDDEN)
    tensors["fc.weight"] = normal(HIDDEN, HIDDEN * len(taps))
    tensors["hidden_norm.weight"] = ones(HIDDEN)
    tensors["norm.weight"] = ones(HIDDEN)
    config = _config("DFlashDraftModel", "qwen3", TINY) | {
        "num_hidden_layers": 2,
        "layer_types": ["full_attention"] * 2,
        "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
        "num_target_layers": len(LAYERS),
        "block_size": 4,
        "dflash_config": {"mask_token_id": 2, "target_layer_ids": taps, "causal": False},
    }
    save(out, config, tensors)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(target / name, out)
    return out


def _config(architecture: str, model_type: str, shape: Shape) -> dict[str, Any]:
    return {
        "architectures": [architecture],
        "model_type": model_type,
        "dtype": "bfloat16",
        "vocab_size": shape.vocab,
        "hidden_size": shape.hidden,
        "intermediate_size": shape.inter,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads,
        "head_dim": shape.head_dim,
        "hidden_act": "silu",
        "max_position_embeddings": 4096,
        "rms_norm_eps": 1e-6,
        "tie_word_embeddings": False,
        "attention_bias": False,
        "bos_token_id": None,
        "eos_token_id": 0,
    }


def save(out: Path, config: dict[str, Any], tensors: dict[str, torch.Tensor]) -> None:
    """Write config.json and model.safetensors."""
    (out / "config.json").write_text(json.dumps(config, indent=1))
    save_file(
        {name: t.cpu().contiguous() for name, t in tensors.items()},
        out / "model.safetensors",
        metadata={"format": "pt"},
    )


def _tokenizer(out: Path) -> None:
    """A byte-level BPE of VOCAB tokens trained on the standard library's sources (6 s)."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB,
        special_tokens=["<|endoftext|>", "<|im_start|>", "<|im_end|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train([str(p) for p in sorted(Path(os.__file__).parent.glob("*.py"))[:120]], trainer)
    assert tokenizer.get_vocab_size() == VOCAB
    tokenizer.save(str(out / "tokenizer.json"))
    template = (
        "{% for m in messages %}<|im_start|>{{m.role}}\n{{m.content}}<|im_end|>\n{% endfor %}"
        "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    )
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": "<|endoftext|>",
        "pad_token": "<|endoftext|>",
        "model_max_length": 4096,
        "clean_up_tokenization_spaces": False,
        "chat_template": template,
    }
    (out / "tokenizer_config.json").write_text(json.dumps(settings, indent=1))
