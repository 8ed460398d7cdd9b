"""Run as a script: load target and drafter in this process (vLLM's LLM class), look at the modules, print what was seen."""

from __future__ import annotations

import json
import os
import sys
from types import SimpleNamespace
from typing import Any

from tests.e2e.engine import ONE_PROCESS, SMALL, runner


def share(inside: Any, head: Any) -> dict[str, Any]:
    """A drafter of three layers, each with a reference to the target's head, as vLLM shares it into MTP drafters; twice."""
    import torch

    from radiance import settings
    from radiance.hook import load, worker

    def drafter() -> torch.nn.Module:
        model = torch.nn.Module()
        model.lm_head = head
        for index in range(3):
            layer = torch.nn.Module()
            layer.shared_head = torch.nn.Module()
            layer.shared_head.head = head
            model.add_module(f"layer{index}", layer)
        return model

    def packed() -> int:
        assert worker.current is not None
        return sum(one.packed_bytes for one in worker.current.snapshot.heads)

    owner = SimpleNamespace(vllm_config=inside.vllm_config, speculative_config=inside.drafter.speculative_config)
    before, modules = packed(), []
    for _ in range(2):
        owner.model = drafter()
        modules += [one.module for one in load.arm(owner, settings.read(), "", [])]
    return {"references": len(modules), "copies": len({id(one) for one in modules}), "more_bytes": packed() - before}


def main(target: str) -> None:
    from vllm import LLM, SamplingParams

    llm = LLM(
        model=target,
        distributed_executor_backend="uni",
        speculative_config={"method": "mtp", "num_speculative_tokens": 2},
        **SMALL,
    )
    inside = runner(llm)
    served, drafter = inside.get_model(), inside.drafter.model
    from vllm.model_executor.layers.logits_processor import LogitsProcessor
    from vllm.model_executor.model_loader.base_loader import BaseModelLoader
    from vllm.v1.spec_decode.llm_base_proposer import SpecDecodeBaseProposer
    from vllm.v1.worker.gpu_worker import Worker

    llm.generate(["def main():"], SamplingParams(temperature=0, max_tokens=8), use_tqdm=False)
    ours = getattr(drafter.lm_head, "source", None)
    shared = share(inside, served.lm_head) if ours is not None else {}
    seen = {
        "target_head": type(served.lm_head).__name__,
        "drafter_head": type(drafter.lm_head).__name__,
        "same_object": drafter.lm_head is served.lm_head,
        "source_is_target_head": ours is served.lm_head,
        "same_storage": drafter.lm_head.weight.data_ptr() == served.lm_head.weight.data_ptr(),
        "token_id_path": inside.drafter.use_local_argmax_reduction,
        "drafter_parameters": len(list(drafter.parameters())),
        "patched": [
            f"{owner.__name__}.{name}"
            for owner, names in (
                (LogitsProcessor, ["forward", "_apply_head", "get_top_tokens", "get_top_k_tokens"]),
                (Worker, ["reload_weights"]),
                (BaseModelLoader, ["load_model"]),
                (SpecDecodeBaseProposer, ["load_model"]),
            )
            for name in names
            if hasattr(getattr(owner, name), "__radiance__")
        ],
        **shared,
        "modules": sorted(name for name in sys.modules if name.startswith("radiance")),
    }
    print("SEEN " + json.dumps(seen), flush=True)


if __name__ == "__main__":
    os.environ |= ONE_PROCESS
    main(sys.argv[1])
