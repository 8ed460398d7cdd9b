"""Target and drafter pairs for vLLM at full head size, with an acceptance that is chosen, not hoped for.

    python tests/bench/pairs.py FOLDER --kinds eagle,dflash2,mtp

Row perm[t] of a head is the embedding of t, so a target is a permutation bigram model with wide margins. Noise in the
drafter's last MLP is scaled until the exact head agrees with the target on a wanted share of tokens: then a head that
ranks worse shows at once. 248320 x 5120 by default:

    FOLDER/eagle/{target,draft}      a two-layer Llama and an EAGLE drafter that shares its head
    FOLDER/eagle3/{target,draft}     the same target and an EAGLE3 drafter with half of the vocabulary and a head of its own
    FOLDER/dflash2/{target,draft}    the same target and a DFlash2 drafter whose first masked slot sees the last token
    FOLDER/dflash/{target,draft}     the same without convolutions and selector: DFlash, which the V1 runner has too
    FOLDER/mtp/target                a Qwen3.5 (one gated delta net, one full attention) with its MTP drafter
    FOLDER/{mimo,glm4_moe,deepseek,qwen3_next}/target    other families with theirs (mtp_pairs.py)
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

sys.path.insert(0, str(Path(__file__).parents[2]))
from tests.bench import mtp_pairs
from tests.bench.drafters import calibrate, some, unit
from tests.e2e import checkpoints

BF16 = torch.bfloat16
MASK = 2  # DFlash2's mask token
#: other targets, with MTP layers
MTP = {
    "mimo": mtp_pairs.mimo,
    "glm4_moe": mtp_pairs.glm4_moe,
    "deepseek": mtp_pairs.deepseek,
    "qwen3_next": mtp_pairs.qwen3_next,
}


class Llama:
    """The target of the EAGLE and DFlash2 pairs, and what their drafters are made of."""

    def __init__(self, hidden: int, vocab: int, device: str, head_scale: float, layers: int = 2) -> None:
        self.generator = torch.Generator(device=device).manual_seed(0)
        self.device, self.hidden, self.vocab, self.layers = device, hidden, vocab, layers
        self.head_dim = 128 if hidden >= 1024 else 64
        self.heads = max(hidden // self.head_dim // 4, 2)
        self.kv_heads, self.inter = max(self.heads // 4, 1), 2 * hidden
        self.embedding = torch.randn(vocab, hidden, generator=self.generator, device=device)
        self.permutation = torch.randperm(vocab, generator=self.generator, device=device)
        rows = torch.empty_like(self.embedding)
        rows[self.permutation] = self.embedding
        self.head = (rows * (head_scale / hidden**0.5)).to(BF16)

    def normal(self, *shape: int, std: float = 0.02) -> torch.Tensor:
        return (torch.randn(*shape, generator=self.generator, device=self.device) * std).to(BF16)

    def ones(self, size: int) -> torch.Tensor:
        return torch.ones(size, dtype=BF16, device=self.device)

    def layer(self, prefix: str, noise: float) -> dict[str, torch.Tensor]:
        hidden, heads = self.hidden, self.heads * self.head_dim
        return {
            prefix + "self_attn.q_proj.weight": self.normal(heads, hidden),
            prefix + "self_attn.k_proj.weight": self.normal(self.kv_heads * self.head_dim, hidden),
            prefix + "self_attn.v_proj.weight": self.normal(self.kv_heads * self.head_dim, hidden),
            prefix + "self_attn.o_proj.weight": self.normal(hidden, heads, std=0.02 * noise),
            prefix + "mlp.gate_proj.weight": self.normal(self.inter, hidden),
            prefix + "mlp.up_proj.weight": self.normal(self.inter, hidden),
            prefix + "mlp.down_proj.weight": self.normal(hidden, self.inter, std=0.02 * noise),
            prefix + "input_layernorm.weight": self.ones(hidden),
            prefix + "post_attention_layernorm.weight": self.ones(hidden),
        }

    def config(self, architecture: str, model_type: str, layers: int) -> dict[str, Any]:
        return {
            "hidden_size": self.hidden,
            "intermediate_size": self.inter,
            "num_attention_heads": self.heads,
            "num_key_value_heads": self.kv_heads,
            "head_dim": self.head_dim,
            "vocab_size": self.vocab,
            "max_position_embeddings": 4096,
            "rms_norm_eps": 1e-6,
            "tie_word_embeddings": False,
            "attention_bias": False,
            "torch_dtype": "bfloat16",
            "model_type": model_type,
            "hidden_act": "silu",
            "bos_token_id": 0,
            "eos_token_id": 1,
            "num_hidden_layers": layers,
            "architectures": [architecture],
        }

    def target_tensors(self) -> dict[str, torch.Tensor]:
        tensors = {
            "model.embed_tokens.weight": self.embedding.to(BF16),
            "lm_head.weight": self.head,
            "model.norm.weight": self.ones(self.hidden),
        }
        for index in range(self.layers):
            tensors |= self.layer(f"model.layers.{index}.", 0.3 * (2 / self.layers) ** 0.5)
        return tensors

    def target(self, folder: Path) -> None:
        write(folder, self.config("LlamaForCausalLM", "llama", self.layers), self.target_tensors())

    def eagle(self, folder: Path, agreement: float) -> None:
        """One layer over [embedding, hidden state]; it passes the embedding on."""
        draft = self.layer("layers.0.", 1.0)
        draft.pop("layers.0.input_layernorm.weight")
        join = torch.randn(self.hidden, 2 * self.hidden, generator=self.generator, device=self.device) * 0.002
        join[:, : self.hidden] += torch.eye(self.hidden, device=self.device)
        draft["fc.weight"] = join.to(BF16)
        ids, states = some(self.embedding)
        joined = torch.cat((self.embedding[ids], states), dim=1) @ draft["fc.weight"].float().T
        noise = calibrate(draft, "layers.0.", joined, self.head, self.permutation[ids], agreement)
        draft["layers.0.self_attn.o_proj.weight"] *= noise
        write(folder, self.config("LlamaForCausalLM", "llama", 1), draft)

    def eagle3(self, folder: Path, agreement: float) -> None:
        """One layer that passes on the embedding of the target's last token. Row perm(perm(t)) of its own head is that of t, so
        its first draft can be right, later ones are not; every fourth id it cannot draft (d2t)."""
        ids = torch.arange(self.vocab, device=self.device)
        drafted = ids[ids % 4 != 3]
        rows = torch.empty_like(self.embedding)
        rows[self.permutation[self.permutation]] = self.embedding
        draft = self.layer("midlayer.", 1.0)
        for name in ("q", "k", "v"):  # of [embedding, hidden state]
            size = len(draft[f"midlayer.self_attn.{name}_proj.weight"])
            draft[f"midlayer.self_attn.{name}_proj.weight"] = self.normal(size, 2 * self.hidden)
        draft |= {
            "fc.weight": torch.eye(self.hidden, 2 * self.hidden, dtype=BF16, device=self.device),
            "midlayer.hidden_norm.weight": self.ones(self.hidden),
            "norm.weight": self.ones(self.hidden),
            "lm_head.weight": (rows[drafted] * (4 / self.hidden**0.5)).to(BF16),
            "d2t": drafted - ids[: len(drafted)],
        }
        ids, _ = some(self.embedding)
        truth = self.permutation[self.permutation[ids]]
        ids, truth = ids[truth % 4 != 3], truth[truth % 4 != 3]
        calibrate(draft, "midlayer.", self.embedding[ids], draft["lm_head.weight"], truth - truth // 4, agreement)
        config = self.config("LlamaForCausalLM", "llama", 1) | {
            "draft_vocab_size": len(drafted),
            "eagle_config": {"eagle_aux_hidden_state_layer_ids": [0, 1], "use_aux_hidden_state": True},
        }
        write(folder, config, draft)

    def dflash2(self, folder: Path, agreement: float, *, second: bool = True) -> None:
        """One layer whose attention sees two positions: the first masked slot hence sees the last token, through a projection
        on as many dimensions as its values have; later slots see masks and are wrong. Queries of 0 weigh both alike."""
        hidden, rank = self.hidden, self.kv_heads * self.head_dim
        draft = self.layer("layers.0.", 1.0)
        mask = self.embedding[MASK] / self.embedding[MASK].norm()
        seen = torch.linalg.qr(torch.randn(hidden, rank, generator=self.generator, device=self.device)).Q.T
        seen -= (seen @ mask)[:, None] * mask  # of the mask itself nothing is passed on
        back = torch.zeros(hidden, self.heads * self.head_dim, device=self.device)
        group = self.heads // self.kv_heads * self.head_dim  # the first query head of each group reads its values back
        for index in range(self.kv_heads):
            columns = slice(index * group, index * group + self.head_dim)
            back[:, columns] = 200 * seen[index * self.head_dim : (index + 1) * self.head_dim].T
        draft["layers.0.self_attn.q_proj.weight"].zero_()
        draft["layers.0.self_attn.v_proj.weight"] = seen.to(BF16)
        draft["layers.0.self_attn.o_proj.weight"] = back.to(BF16)
        for name in ("q_norm", "k_norm"):
            draft[f"layers.0.self_attn.{name}.weight"] = self.ones(self.head_dim)
        groups = hidden // 64
        for name in ("attention_conv", "mlp_conv") if second else ():  # the identity
            base = torch.zeros(2, 4, hidden, device=self.device, dtype=BF16)
            base[:, 0] = 1
            draft[f"layers.0.{name}.base_kernel"] = base
            draft[f"layers.0.{name}.kernel_projection.weight"] = self.normal(8 * groups, hidden, std=0)
        draft |= {
            "fc.weight": self.normal(hidden, 2 * hidden),
            "hidden_norm.weight": self.ones(hidden),
            "norm.weight": self.ones(hidden),
        }
        selector = {
            "candidate_selector.predecessor_codebook": self.normal(self.vocab, 32),
            "candidate_selector.successor_codebook": self.normal(self.vocab, 32),
            "candidate_selector.hidden_projection.weight": self.normal(32, hidden),
        }
        draft |= selector if second else {}
        ids, _ = some(self.embedding)
        passed = (unit(self.embedding[ids]) @ seen.T) @ (100 * seen)
        calibrate(draft, "layers.0.", self.embedding[MASK] + passed, self.head, self.permutation[ids], agreement)
        special = {
            "conv_kernel_size": 4,
            "conv_group_size": 64,
            "selector_rank": 32,
            "selector_top_k": 16,
            "block_size": 4,
        }
        config = self.config("DFlash2DraftModel" if second else "DFlashDraftModel", "qwen3", 1) | {
            "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
            "layer_types": ["sliding_attention"],
            "sliding_window": 2,
            "num_target_layers": 2,
            "block_size": 4,
            "dflash_config": {
                "mask_token_id": MASK,
                "target_layer_ids": [0, 1],
                "causal": True,
                "swa_window_size": 2,
                **(special if second else {}),
            },
        }
        write(folder, config, draft)

    def dflash(self, folder: Path, agreement: float) -> None:
        self.dflash2(folder, agreement, second=False)


#: kinds with a drafter of its own beside the Llama target
DRAFTERS = {"eagle": Llama.eagle, "eagle3": Llama.eagle3, "dflash": Llama.dflash, "dflash2": Llama.dflash2}


def mtp(folder: Path, hidden: int, vocab: int, agreement: float, device: str) -> None:
    """A Qwen3.5 of two layers and its MTP drafter."""
    shape = checkpoints.full(hidden, vocab, 2 * hidden)
    config, tensors, permutation = checkpoints.qwen35(shape, 0.3, 0, 4 / hidden**0.5, device)
    ids, states = some(tensors["model.embed_tokens.weight"])
    joined = torch.cat((unit(tensors["model.embed_tokens.weight"][ids].float()), unit(states)), dim=1)
    residual = joined @ tensors["mtp.fc.weight"].float().T
    calibrate(tensors, "mtp.layers.0.", residual, tensors["lm_head.weight"], permutation[ids], agreement)
    write(folder, config, tensors)


def write(folder: Path, config: dict[str, Any], tensors: dict[str, torch.Tensor]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    save_file({key: t.cpu().contiguous() for key, t in tensors.items()}, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(config))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--kinds", default="eagle")
    parser.add_argument("--hidden", type=int, default=5120)
    parser.add_argument("--vocab", type=int, default=248320)
    parser.add_argument("--agreement", type=float, default=0.85)
    parser.add_argument("--head-scale", type=float, default=4.0, help="1 and less: temperature 1 is no longer greedy")
    parser.add_argument("--layers", type=int, default=2, help="of the Llama target")
    chosen = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    kinds = chosen.kinds.split(",")
    if unknown := set(kinds) - {*DRAFTERS, *MTP, "mtp"}:
        parser.error(f"there is no kind {', '.join(unknown)}")
    if set(kinds) - {"mtp"}:
        llama = Llama(chosen.hidden, chosen.vocab, device, chosen.head_scale, chosen.layers)
        first = None
        for kind in [k for k in DRAFTERS if k in kinds]:
            (chosen.out / kind).mkdir(parents=True, exist_ok=True)
            if first is None:
                llama.target(chosen.out / kind / "target")
                first = chosen.out / kind / "target"
            else:
                (chosen.out / kind / "target").unlink(missing_ok=True)
                (chosen.out / kind / "target").symlink_to(first.resolve())
            DRAFTERS[kind](llama, chosen.out / kind / "draft", chosen.agreement)
        for kind in [k for k in MTP if k in kinds]:
            write(chosen.out / kind / "target", *MTP[kind](llama, chosen.agreement))
        del llama
    if "mtp" in kinds:
        mtp(chosen.out / "mtp" / "target", chosen.hidden, chosen.vocab, chosen.agreement, device)


if __name__ == "__main__":
    main()
