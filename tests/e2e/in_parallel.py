"""Run as a script: two tensor parallel ranks on a CPU; prints tokens, accepted share, and what the ranks say of their heads.

With --fail the 2-bit path of rank 1 begins to raise after the first generation.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

from tests.e2e.engine import ENVIRONMENT, SMALL

PROMPTS = ["def main():", "import os\n", "class Foo:", "for i in range("]


def fail_on_rank_1(worker: Any) -> int:
    """Sent to every worker: from now on the coarse pass of rank 1 raises."""
    import torch

    from radiance import reference

    def fail(*_: object) -> None:
        raise RuntimeError("sabotaged call")

    if torch.distributed.get_rank() == 1:
        reference.coarse = fail  # type: ignore[assignment]
    return int(torch.distributed.get_rank())


def main(target: str) -> None:
    from vllm import LLM, SamplingParams

    llm = LLM(
        model=target,
        tensor_parallel_size=2,
        speculative_config={"method": "mtp", "num_speculative_tokens": 3},
        **SMALL,
    )

    def serve() -> dict[str, Any]:
        names = ("vllm:spec_decode_num_draft_tokens", "vllm:spec_decode_num_accepted_tokens")

        def count() -> list[int]:
            return [int(m.value) for name in names for m in llm.get_metrics() if m.name == name]

        before = count()
        out = llm.generate(PROMPTS, SamplingParams(temperature=0, max_tokens=48, ignore_eos=True), use_tqdm=False)
        drafted, accepted = (now - then for now, then in zip(count(), before, strict=True))
        time.sleep(1.5)  # workers write their state once a second
        states = sorted(Path(os.environ["RADIANCE_STATE_DIR"]).glob("*.radiance.json"))
        ranks = [json.loads(path.read_text()) for path in states]
        return {
            "tokens": [list(o.outputs[0].token_ids) for o in out],
            "accepted": accepted / drafted,
            "ranks": [{"rank": r["rank"], "heads": [[h["state"], h["reason"], h["n"], h["calls"]] for h in r["heads"]]}
                      for r in ranks],
        }  # fmt: skip

    seen = {"first": serve()}
    if "--fail" in sys.argv:
        assert sorted(llm.collective_rpc(fail_on_rank_1)) == [0, 1]
        seen["failing"] = serve()
    print("SEEN " + json.dumps(seen), flush=True)


if __name__ == "__main__":
    os.environ |= {
        **ENVIRONMENT,
        "VLLM_ALLOW_INSECURE_SERIALIZATION": "1",  # a function is sent to the workers
        "VLLM_CPU_OMP_THREADS_BIND": "0|1",
    }
    main(sys.argv[1])
