"""Breaks the 2-bit head on purpose inside a real vLLM process: the proof that the end-to-end tests can fail.

On PYTHONPATH of a server under test; SABOTAGE says what to break. `coarse` answers with the best coarse row instead of the
reranked one, `random` proposes random tokens, `pack` and `call` raise while packing and while answering; `pack-rank1` does
so on tensor parallel rank 1 alone; `seam` moves a method that we wrap to a base class, as a new vLLM might.
"""

from __future__ import annotations

import os
import sys
from types import ModuleType

from radiance.hook.imports import AfterImport


def _reference(module: ModuleType) -> None:
    import torch

    kind = os.environ["SABOTAGE"]

    def by_position(source: object, x: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
        return -torch.arange(ids.shape[1]).float().expand(ids.shape)

    def random_ids(values: torch.Tensor, r: int, n_valid: int) -> torch.Tensor:
        return torch.rand(values.shape[0], n_valid).topk(r, dim=1).indices

    def fail(*_: object, **__: object) -> None:
        raise RuntimeError("sabotaged call")

    if kind in ("coarse", "random"):
        module.rerank = by_position  # type: ignore[attr-defined]
    if kind == "random":
        module.select = random_ids  # type: ignore[attr-defined]
    if kind == "call":
        module.coarse = fail  # type: ignore[attr-defined]


def _quantise(module: ModuleType) -> None:
    def fail(*_: object, **__: object) -> None:
        raise RuntimeError("sabotaged packing")

    kind, honest = os.environ["SABOTAGE"], module.quantise
    if kind == "pack":
        module.quantise = fail  # type: ignore[attr-defined]
    if kind == "pack-rank1":
        module.quantise = lambda *a, **k: (fail if _rank() else honest)(*a, **k)  # type: ignore[attr-defined]


def _rank() -> int:
    import torch

    return torch.distributed.get_rank()


def _proposer(module: ModuleType) -> None:
    if os.environ["SABOTAGE"] == "seam":
        owner = module.SpecDecodeBaseProposer
        module.SpecDecodeBaseProposer = type(owner.__name__, (owner,), {})  # type: ignore[attr-defined]


sys.meta_path.insert(
    0,
    AfterImport(
        {
            "radiance.reference": _reference,
            "radiance.quantise": _quantise,
            "vllm.v1.spec_decode.llm_base_proposer": _proposer,
        }
    ),
)
