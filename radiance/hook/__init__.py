"""Puts DraftHead into vLLM's drafters. The only package that knows vLLM.

Seams, read in vLLM 0.26, 0.29, 0.32 and 0.33 (V1 = v1/spec_decode, V2 = v1/worker/gpu/spec_decode):

| class, attribute | where | what we do | if it is absent |
|---|---|---|---|
| SpecDecodeBaseProposer.load_model | V1 llm_base_proposer | after it: replace the drafter's heads | this runner: no head; WARNING, status.problem |
| DraftModelSpeculator.load_model | V2 speculator | the same | the same |
| BaseModelLoader.load_model | model_loader.base_loader | look whether the drafter's head is still empty | lateness is not reported |
| LogitsProcessor.forward | layers.logits_processor | models without get_top_tokens: ids instead of a row | the row, then argmax |
| LogitsProcessor._apply_head | the same | row callers: our row, in head_dtype | our quant_method.apply answers; no head_dtype |
| LogitsProcessor.get_top_tokens | the same | argmax callers: token ids, no [m, n] row | through the row |
| LogitsProcessor.get_top_k_tokens | the same (0.29+) | top-k callers | through the row |
| Worker.reload_weights | v1 gpu_worker | after it: pack again what changed | a reloaded head is not noticed |
| Worker.wake_up | the same | after it: pack what a sleep took, if its weights are back | after level 2 only a reload packs |
| Worker._start_weight_update, update_weights, finish_weight_update, get_draft_model | the same | sessions of a weight transfer: lend a drafter its own heads, then pack what changed | weight transfer: declined by name |
| head.quant_method.apply, .weight, .weight_scale, .shard_indices, .tp_size | ParallelLMHead | read once when a head is replaced | DECLINED(reason) |
| use_local_argmax_reduction, speculative_config | proposer, speculator | turned on for greedy drafts | left as it is |

Why after load_model and not in Model.load_weights: only then has vLLM shared the target's head into the drafter (MTP, EAGLE
and DFlash all do), dummy and sharded loaders pass here too, and the packed bytes are still inside the accounting that sizes
the KV cache. The drafter gets a head module of its own; the target's stays the same object.

Read in this order: imports (post-import hooks), load (after a drafter is loaded), module (the head module), ranks (tensor
parallel ranks agree), answers (calls), weights (reload, sleep, transfer), worker (what this process reports).
"""  # noqa: E501

from __future__ import annotations

import sys
from collections.abc import Callable
from types import ModuleType

from radiance.hook import imports
from radiance.settings import Settings


def install(settings: Settings, problem: str = "") -> None:
    """Leave post-import hooks for the seams. `problem`: a bad setting; then nothing is replaced, only reported."""
    from radiance.hook import answers, load, weights

    patches: dict[str, Callable[[ModuleType], None]] = {
        "vllm.v1.spec_decode.llm_base_proposer": lambda m: load.wrap(m, "SpecDecodeBaseProposer", settings, problem),
        "vllm.v1.worker.gpu.spec_decode.speculator": lambda m: load.wrap(m, "DraftModelSpeculator", settings, problem),
    }
    if not problem:
        patches["vllm.model_executor.model_loader.base_loader"] = load.wrap_loader
        patches["vllm.model_executor.layers.logits_processor"] = answers.wrap
        patches["vllm.v1.worker.gpu_worker"] = weights.wrap
    pending = {}
    for name, patch in patches.items():
        if name in sys.modules:
            imports.apply(patch, sys.modules[name])
        else:
            pending[name] = patch
    sys.meta_path.insert(0, imports.AfterImport(pending))
