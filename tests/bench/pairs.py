"""Target and drafter pairs for vLLM at full head size, with an acceptance that is chosen, not hoped for.

`eagle`: a two-layer Llama and an EAGLE drafter that shares its head (248320 x 5120 by default). Row perm[t] of the head is
the embedding of t, so the target is a permutation bigram model with wide margins. Noise in the drafter's one layer is
scaled until the exact head agrees with the target on a wanted share of tokens: then a head that ranks worse shows at once.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import torch
from safetensors.torch import save_file

BF16 = torch.bfloat16


def eagle(out: Path, hidden: int, vocab: int, agreement: float, device: str) -> None:
    """Write out/target and out/draft. `agreement`: wanted share of tokens on which the drafter's exact argmax is right."""
    generator = torch.Generator(device=device).manual_seed(0)
    head_dim = 128 if hidden >= 1024 else 64
    heads = max(hidden // head_dim // 4, 2)
    kv_heads, inter = max(heads // 4, 1), 2 * hidden

    def normal(*shape: int, std: float = 0.02) -> torch.Tensor:
        return (torch.randn(*shape, generator=generator, device=device) * std).to(BF16)

    def layer(prefix: str, noise: float) -> dict[str, torch.Tensor]:
        return {
            prefix + "self_attn.q_proj.weight": normal(heads * head_dim, hidden),
            prefix + "self_attn.k_proj.weight": normal(kv_heads * head_dim, hidden),
            prefix + "self_attn.v_proj.weight": normal(kv_heads * head_dim, hidden),
            prefix + "self_attn.o_proj.weight": normal(hidden, heads * head_dim, std=0.02 * noise),
            prefix + "mlp.gate_proj.weight": normal(inter, hidden),
            prefix + "mlp.up_proj.weight": normal(inter, hidden),
            prefix + "mlp.down_proj.weight": normal(hidden, inter, std=0.02 * noise),
            prefix + "input_layernorm.weight": torch.ones(hidden, dtype=BF16),
            prefix + "post_attention_layernorm.weight": torch.ones(hidden, dtype=BF16),
        }

    embedding = torch.randn(vocab, hidden, generator=generator, device=device)
    permutation = torch.randperm(vocab, generator=generator, device=device)
    rows = torch.empty_like(embedding)
    rows[permutation] = embedding
    target = {
        "model.embed_tokens.weight": embedding.to(BF16),
        "lm_head.weight": (rows * (4 / hidden**0.5)).to(BF16),
        "model.norm.weight": torch.ones(hidden, dtype=BF16),
        **layer("model.layers.0.", 0.3),
        **layer("model.layers.1.", 0.3),
    }
    draft = layer("layers.0.", 1.0)
    draft.pop("layers.0.input_layernorm.weight")
    join = torch.randn(hidden, 2 * hidden, generator=generator, device=device) * 0.002
    join[:, :hidden] += torch.eye(hidden, device=device)
    draft["fc.weight"] = join.to(BF16)
    noise = calibrate(draft, target["lm_head.weight"], embedding, permutation, agreement)
    for name in ("self_attn.o_proj", "mlp.down_proj"):
        draft[f"layers.0.{name}.weight"] *= noise
    config = {
        "hidden_size": hidden,
        "intermediate_size": inter,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "head_dim": head_dim,
        "vocab_size": vocab,
        "max_position_embeddings": 4096,
        "rms_norm_eps": 1e-6,
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
        "model_type": "llama",
        "hidden_act": "silu",
        "bos_token_id": 0,
        "eos_token_id": 1,
        "architectures": ["LlamaForCausalLM"],
    }
    for name, tensors, layers in (("target", target, 2), ("draft", draft, 1)):
        folder = out / name
        folder.mkdir(parents=True, exist_ok=True)
        save_file({key: t.cpu().contiguous() for key, t in tensors.items()}, folder / "model.safetensors")
        (folder / "config.json").write_text(json.dumps(config | {"num_hidden_layers": layers}))


@torch.no_grad()
def calibrate(
    draft: dict[str, torch.Tensor],
    head: torch.Tensor,
    embedding: torch.Tensor,
    permutation: torch.Tensor,
    agreement: float,
    tokens: int = 2048,
) -> float:
    """The factor on the drafter's MLP output at which its exact argmax is right on `agreement` of the tokens, by bisection.

    The layer is computed as vLLM does at the first position; attention, a small part of the noise, is left out.
    """
    generator = torch.Generator(device=head.device).manual_seed(1)
    ids = torch.randint(0, len(head), (tokens,), generator=generator, device=head.device)
    states = torch.randn(tokens, embedding.shape[1], generator=generator, device=head.device)
    joined = torch.cat((embedding[ids], states), dim=1) @ draft["fc.weight"].float().T
    normed = joined * joined.square().mean(1, keepdim=True).rsqrt()
    gate, up, down = (draft[f"layers.0.mlp.{name}_proj.weight"].float() for name in ("gate", "up", "down"))
    noise = (torch.nn.functional.silu(normed @ gate.T) * (normed @ up.T)) @ down.T

    def right(factor: float) -> float:
        logits = (joined + factor * noise).to(BF16) @ head.T
        return float((logits.argmax(1) == permutation[ids]).float().mean())

    low, high = 0.1, 100.0
    for _ in range(16):
        middle = (low * high) ** 0.5
        low, high = (middle, high) if right(middle) > agreement else (low, middle)
    print(f"drafter noise {low:.3f}: exact head right on {right(low):.3f} of tokens", flush=True)
    return low


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("out", type=Path)
    parser.add_argument("--hidden", type=int, default=5120)
    parser.add_argument("--vocab", type=int, default=248320)
    parser.add_argument("--agreement", type=float, default=0.85)
    chosen = parser.parse_args()
    eagle(chosen.out, chosen.hidden, chosen.vocab, chosen.agreement, "cuda" if torch.cuda.is_available() else "cpu")
