"""Run as a script: a trainer's weights come in while the engine runs, and at last some that fail.

    python -m tests.e2e.transfers FOLDER eagle|eagle3 0|1        (without and with the 2-bit head)

EAGLE shares the target's head: first the target's weights come, then the drafter's. EAGLE3 has a head of its own: its weights
come with the rows of that head in another order, then as they were. FOLDER is made by tests/bench/pairs.py.
What brings the weights is an engine of ours that reads a file where vLLM's own receive from another GPU; the sessions, and
taking modules apart, are vLLM's.
"""

from __future__ import annotations

import json
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.e2e.engine import ONE_PROCESS, SMALL, counted_drafts, generated, runner


def main(folder: Path, kind: str) -> None:
    from safetensors.torch import load_file, save_file
    from vllm import LLM
    from vllm.distributed.weight_transfer.base import (
        WeightTransferEngine,
        WeightTransferInitInfo,
        WeightTransferUpdateInfo,
    )
    from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory
    from vllm.model_executor.model_loader.reload import finalize_layerwise_reload, initialize_layerwise_reload

    @dataclass
    class Init(WeightTransferInitInfo):
        pass

    @dataclass
    class Update(WeightTransferUpdateInfo):
        path: str

    class FromFile(WeightTransferEngine[Init, Update]):
        init_info_cls, update_info_cls = Init, Update

        def init_transfer_engine(self, *_: Any) -> None:
            pass

        def start_weight_update(self) -> None:
            initialize_layerwise_reload(self.model)

        def receive_weights(self, update_info: Update) -> None:
            self.model.load_weights(load_file(update_info.path).items())

        def finish_weight_update(self) -> None:
            finalize_layerwise_reload(self.model, self.model_config)

        def shutdown(self) -> None:
            pass

    WeightTransferEngineFactory.register_engine("file", FromFile)

    new = {
        "target": load_file(folder / "eagle/target/model.safetensors"),
        "same": load_file(folder / f"{kind}/draft/model.safetensors"),
    }
    new["draft"] = dict(new["same"])
    # What follows a token is another one now.
    head = new["target" if kind == "eagle" else "draft"]
    head["lm_head.weight"] = head["lm_head.weight"].roll(1, 0).contiguous()
    if kind == "eagle":
        new["draft"]["layers.0.mlp.down_proj.weight"] = (
            new["draft"]["layers.0.mlp.down_proj.weight"] * 0.3
        )  # less noise
    for name, tensors in new.items():
        save_file(tensors, folder / f"{name}.safetensors")

    counted = counted_drafts()
    llm = LLM(
        f"{folder}/eagle/target",
        distributed_executor_backend="uni",
        skip_tokenizer_init=True,
        speculative_config={"method": kind, "model": f"{folder}/{kind}/draft", "num_speculative_tokens": 3},
        weight_transfer_config={"backend": "file"},
        **SMALL,
    )
    drafter = runner(llm).drafter

    def serve() -> dict[str, Any]:
        seen = generated(llm, counted) | {"head": type(drafter.model.lm_head).__name__}
        ours = getattr(drafter.model.lm_head, "radiance", None)
        if ours is not None:
            ours.refresh()
            seen |= {"state": ours.status.state, "repacked": ours.status.repacked, "calls": ours.status.calls}
        return seen

    def session(start: str, file: str) -> None:
        llm.collective_rpc(start)
        llm.collective_rpc("update_weights", args=({"path": f"{folder}/{file}.safetensors"},))
        llm.collective_rpc("finish_weight_update")

    llm.collective_rpc("init_weight_transfer_engine", args=({},))
    seen = {"before": serve()}
    for name in ("target", "draft") if kind == "eagle" else ("draft", "same"):
        session("start_weight_update" if name == "target" else "start_draft_weight_update", name)
        seen[name] = serve()
    try:
        session("start_draft_weight_update", "nothing")
    except Exception as error:
        seen["failed"] = {"error": type(error).__name__, "head": type(drafter.model.lm_head).__name__}
    print("SEEN " + json.dumps(seen), flush=True)
    os._exit(0)


if __name__ == "__main__":
    os.environ |= {**ONE_PROCESS, "RADIANCE_FAST_DRAFT": sys.argv[3]}
    main(Path(sys.argv[1]), sys.argv[2])
