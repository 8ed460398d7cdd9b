"""Targets with MTP drafters of other families, for tests/bench/pairs.py: MiMo, GLM-4 MoE, DeepSeek, Qwen3-Next.

The same permutation bigram as there. MiMo takes its head at the call, GLM-4 and DeepSeek have a shared_head in each MTP
layer, Qwen3-Next one lm_head and no get_top_tokens. A mixture of experts is as small as vLLM takes one: it only must be there.
"""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

import torch

from tests.bench.drafters import join
from tests.e2e import checkpoints

if TYPE_CHECKING:
    from tests.bench.pairs import Llama

EXPERTS = {"num_experts_per_tok": 2, "moe_intermediate_size": 128, "norm_topk_prob": True}


def mimo(llama: Llama, agreement: float) -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
    """The Llama target under Qwen2's names (its q, k and v have biases, its heads add up to the width) and one MTP layer."""
    llama = copy.copy(llama)
    llama.heads = llama.hidden // llama.head_dim
    tensors = llama.target_tensors()
    mtp = "model.mtp_layers.0."
    tensors |= llama.layer(mtp, 0.3)
    for name in [name for name in tensors if name.endswith(("q_proj.weight", "k_proj.weight", "v_proj.weight"))]:
        tensors[name.removesuffix("weight") + "bias"] = llama.normal(len(tensors[name]), std=0)
    for name in ("token_layernorm", "hidden_layernorm", "final_layernorm"):
        tensors[f"{mtp}{name}.weight"] = llama.ones(llama.hidden)
    embedding, hidden = join(llama.embedding, llama.head, llama.permutation, agreement)
    tensors[mtp + "input_proj.weight"] = torch.cat((hidden, embedding), 1)
    config = llama.config("MiMoForCausalLM", "qwen2", 2) | {"num_nextn_predict_layers": 1, "use_sliding_window": False}
    return config, tensors


def glm4_moe(llama: Llama, agreement: float) -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
    """A dense layer, one with experts, and an MTP layer with experts and a shared_head."""
    tensors = llama.target_tensors()
    mtp = "model.layers.2."
    tensors |= llama.layer(mtp, 0.3)
    for prefix in ("model.layers.1.", mtp):
        for name in ("gate", "up", "down"):
            del tensors[f"{prefix}mlp.{name}_proj.weight"]
        tensors |= experts(llama, prefix + "mlp.", "shared_experts")
        tensors[prefix + "mlp.gate.e_score_correction_bias"] = torch.zeros(4)
    for name in ("enorm", "hnorm", "shared_head.norm"):
        tensors[f"{mtp}{name}.weight"] = llama.ones(llama.hidden)
    tensors[mtp + "eh_proj.weight"] = torch.cat(join(llama.embedding, llama.head, llama.permutation, agreement), 1)
    config = llama.config("Glm4MoeForCausalLM", "glm4_moe", 2) | {
        "num_nextn_predict_layers": 1, "first_k_dense_replace": 1, "n_routed_experts": 4, "n_shared_experts": 1,
        "n_group": 1, "topk_group": 1, "routed_scaling_factor": 1.0, "use_qk_norm": False, "partial_rotary_factor": 0.5,
        "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.5}, **EXPERTS,
    }  # fmt: skip
    return config, tensors


def deepseek(llama: Llama, agreement: float) -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
    """GLM-4's tensors with latent attention in every layer, and a head and an embedding of its own in the MTP layer."""
    config, tensors = glm4_moe(llama, agreement)
    tensors = {name: tensor for name, tensor in tensors.items() if "self_attn" not in name}
    heads, latent, rope, size = 4, 512, 64, 64
    for index in range(3):
        attention = f"model.layers.{index}.self_attn."
        tensors |= {
            attention + "q_proj.weight": llama.normal(heads * (size + rope), llama.hidden),
            attention + "kv_a_proj_with_mqa.weight": llama.normal(latent + rope, llama.hidden),
            attention + "kv_a_layernorm.weight": llama.ones(latent),
            attention + "kv_b_proj.weight": llama.normal(heads * 2 * size, latent),
            attention + "o_proj.weight": llama.normal(llama.hidden, heads * size, std=0.006),
        }
    tensors["model.layers.2.embed_tokens.weight"] = tensors["model.embed_tokens.weight"].clone()
    tensors["model.layers.2.shared_head.head.weight"] = tensors["lm_head.weight"].clone()
    for name in ("head_dim", "partial_rotary_factor"):
        del config[name]
    config |= {
        "architectures": ["DeepseekV3ForCausalLM"], "model_type": "deepseek_v3", "num_attention_heads": heads,
        "num_key_value_heads": heads, "kv_lora_rank": latent, "q_lora_rank": None, "qk_rope_head_dim": rope,
        "qk_nope_head_dim": size, "v_head_dim": size, "moe_layer_freq": 1, "scoring_func": "sigmoid",
        "topk_method": "noaux_tc", "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
    }  # fmt: skip
    return config, tensors


def qwen3_next(llama: Llama, agreement: float) -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
    """Qwen3.5's layers under Qwen3-Next's names: projections of the delta net in one matrix, experts instead of the MLP."""
    shape = checkpoints.full(llama.hidden, llama.vocab, 128)
    config, tensors, permutation = checkpoints.qwen35(shape, 0.3, 0, 4 / llama.hidden**0.5, llama.device)
    embedding = tensors["model.embed_tokens.weight"].float()
    tensors["mtp.fc.weight"] = torch.cat(join(embedding, tensors["lm_head.weight"], permutation, agreement), 1)
    net = "model.layers.0.linear_attn."
    for fused, parts in (("qkvz", ("qkv", "z")), ("ba", ("b", "a"))):
        tensors[f"{net}in_proj_{fused}.weight"] = torch.cat(
            [tensors.pop(f"{net}in_proj_{part}.weight") for part in parts]
        )
    for prefix in ("model.layers.0.", "model.layers.1.", "mtp.layers.0."):
        for name in ("gate", "up", "down"):
            del tensors[f"{prefix}mlp.{name}_proj.weight"]
        tensors |= experts(llama, prefix + "mlp.", "shared_expert")
        tensors[prefix + "mlp.shared_expert_gate.weight"] = llama.normal(1, llama.hidden)
    config |= {
        "architectures": ["Qwen3NextForCausalLM"], "model_type": "qwen3_next", "num_experts": 4, "decoder_sparse_step": 1,
        "mlp_only_layers": [], "shared_expert_intermediate_size": 128, "num_nextn_predict_layers": 1, **EXPERTS,
    }  # fmt: skip
    return config, tensors


def experts(llama: Llama, prefix: str, shared: str) -> dict[str, torch.Tensor]:
    """Four routed experts and a shared one, of 128 each."""
    tensors = {prefix + "gate.weight": llama.normal(4, llama.hidden)}
    for name in (*(f"experts.{i}" for i in range(4)), shared):
        for part in ("gate", "up"):
            tensors[f"{prefix}{name}.{part}_proj.weight"] = llama.normal(128, llama.hidden)
        tensors[f"{prefix}{name}.down_proj.weight"] = llama.normal(llama.hidden, 128)
    return tensors
