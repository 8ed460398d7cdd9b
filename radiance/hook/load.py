"""After vLLM has loaded a drafter: find its heads, replace them, let the ranks agree, take the path of token ids."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from radiance.hook import answers, imports, ranks, weights, worker
from radiance.hook.module import replacement
from radiance.settings import Mode, Settings
from radiance.status import HeadState

log = logging.getLogger("vllm.radiance")

#: attribute names under which drafters keep their LM head. DSpark's markov_w2 and Gemma4's masked embedder have other names
HEAD_ATTRIBUTES = ("lm_head", "head")

_loading = threading.local()


@dataclass
class Replaced:
    """One reference to a head that now points at ours."""

    parent: Any
    attribute: str
    source: Any  # what was there, a LoRA wrapper included
    module: Any


def wrap(module: ModuleType, class_name: str, settings: Settings, problem: str) -> None:
    """Arm every drafter that `class_name`, vLLM's proposer (V1) or speculator (V2), loads."""
    owner = getattr(module, class_name, None)
    if owner is None or "load_model" not in vars(owner):
        seam = f"{module.__name__}.{class_name}.load_model"
        # In the worker's state too, until the other runner, if it is the one in use, arms a head.
        worker.telemetry(settings, None).problem(
            f"{seam} is not there in this vLLM (see the seam table in radiance/hook); the stock draft head is used"
        )
        return

    def make(original: Callable[..., Any]) -> Callable[..., Any]:
        def load_model(self: Any, *args: Any, **kwargs: Any) -> Any:
            _loading.models = []
            try:
                result = original(self, *args, **kwargs)
                early = _loading.models
            finally:
                del _loading.models
            replaced: list[Replaced] = []
            try:
                replaced = arm(self, settings, problem, early)
            except Exception as error:  # the server goes on with the stock head
                log.exception("Radiance declined: arming the drafter failed")
                worker.telemetry(settings, self.vllm_config).problem(f"arming failed: {error!r}")
            _settle(self, settings, replaced)
            return result

        return load_model

    imports.wrap(owner, "load_model", make)


def wrap_loader(module: ModuleType) -> None:
    """Remember a few rows of each head as they are when the drafter's own weights have been loaded."""

    def make(original: Callable[..., Any]) -> Callable[..., Any]:
        def load_model(self: Any, *args: Any, **kwargs: Any) -> Any:
            model = original(self, *args, **kwargs)
            models = getattr(_loading, "models", None)
            if models is not None:
                try:
                    models.append({path: _some_rows(head) for _, _, path, head in _heads(model)})
                except Exception:  # only the report of lateness is lost
                    log.exception("Radiance could not look at the drafter's heads before they are shared")
            return model

        return load_model

    imports.wrap(module.BaseModelLoader, "load_model", make)


def arm(owner: Any, settings: Settings, problem: str, early: list[dict[str, Any]]) -> list[Replaced]:
    """Replace every LM head of a loaded drafter. `owner` is vLLM's proposer (V1) or speculator (V2).

    `early`: rows of the drafter's heads before sharing. A head that came to hold other values (DFlash has none of its own:
    zeros, or whatever lay in that memory) was not final then; its quantisation had to wait and is reported as lazy.
    """
    import torch

    telemetry = worker.telemetry(settings, owner.vllm_config)
    problem = problem or refusal(owner)
    found = [] if problem else list(_heads(owner.model))
    if not problem and not found:
        problem = f"no LM head found in drafter {type(owner.model).__name__}; the stock head is used"
    if problem:
        telemetry.problem(problem)
        return []
    lossy = getattr(owner.speculative_config, "rejection_sample_method", "standard")
    if lossy in ("fly", "synthetic"):
        log.warning(
            "rejection_sample_method=%s changes the output distribution by itself, with or without Radiance", lossy
        )
    before = {path: rows for report in early for path, rows in report.items()}
    modules: dict[int, Any] = {}  # one for each head, however many places refer to it
    replaced: list[Replaced] = []
    with torch.no_grad():
        for parent, attribute, path, head in found:
            if id(head) not in modules:
                late = _came_late(head, before.get(path))
                modules[id(head)] = replacement(head, path, owner, settings, telemetry, late)
            module = modules[id(head)]
            if module is not None:
                replaced.append(Replaced(parent, attribute, parent._modules[attribute], module))
                _put(parent, attribute, module)
    telemetry.snapshot.problem = ""  # a seam of the runner that is not used
    telemetry.flush()
    return replaced


def _settle(owner: Any, settings: Settings, replaced: list[Replaced]) -> None:
    """Let the ranks agree on ids, rows or nothing, and do that. Never raises."""
    try:
        wanted = "no" if not replaced else "ids" if settings.mode is Mode.ON and token_ids_suffice(owner) else "rows"
    except Exception:
        log.exception("Radiance declined: it could not be found out what the drafter is asked for")
        wanted = "no"
    agreed = wanted
    try:
        if getattr(owner.vllm_config.parallel_config, "tensor_parallel_size", 1) > 1:
            from vllm.distributed.parallel_state import get_tp_group

            agreed = ranks.agree(wanted, get_tp_group())
    except Exception:
        log.exception("Radiance declined: the ranks could not agree on the draft head")
        agreed = "no"
    if agreed == "no":
        _withdraw(owner, replaced, "arming_failed" if wanted == "no" else "ranks_disagree")
    elif agreed == "ids":
        owner.use_local_argmax_reduction = True


def _withdraw(owner: Any, replaced: list[Replaced], reason: str) -> None:
    owner.model.__dict__.pop("get_top_tokens", None)  # ours, if answers.bind_top_tokens() gave it one
    for one in replaced:
        _put(one.parent, one.attribute, one.source)
        if one.module.radiance.status.state is not HeadState.DECLINED:
            one.module.radiance.decline(reason)


def _put(parent: Any, attribute: str, module: Any) -> None:
    delattr(parent, attribute)
    setattr(parent, attribute, module)


def refusal(owner: Any) -> str:
    """Why this drafter or engine keeps its stock head, or nothing."""
    drafter, config = owner.model, owner.vllm_config
    rival = getattr(owner.speculative_config, "draft_lm_head_quantization", None)
    if rival:
        return (
            f"draft_lm_head_quantization={rival} is set: vLLM's own quantised draft head is used, Radiance stands "
            "down; unset one of the two"
        )
    if getattr(drafter, "masked_embedding", None) is not None:
        return f"{type(drafter).__name__} proposes through a masked embedding, not through its LM head"
    if getattr(config, "weight_transfer_config", None) is not None and not weights.sessions_are_followed():
        return "weight transfer is set up, but this vLLM's Worker lacks methods of its sessions (see the seam table in radiance/hook)"
    return ""


def token_ids_suffice(owner: Any) -> bool:
    """True if drafts are greedy and nothing but the winning ids is asked of the drafter: then no [m, n] row need exist.

    A model without a get_top_tokens of its own gets one that goes through its compute_logits, if that is no more than the
    head; so does Gemma4, whose own one asserts a masked embedding.
    """
    if (
        getattr(owner.speculative_config, "draft_sample_method", "greedy") != "greedy"
        or getattr(owner, "use_heterogeneous_vocab", False)
        or getattr(owner, "acceptance_estimator", None) is not None
        or hasattr(owner.model, "compute_draft_logits")
        or hasattr(
            owner, "_sample_draft_tokens_for_step"
        )  # Step-3.5 on V1 does not tell get_top_tokens() the step's head
    ):
        return False
    if hasattr(owner.model, "get_top_tokens") and not hasattr(owner.model, "masked_embedding"):
        # LogitsProcessor.get_top_tokens refuses other scales
        return bool(getattr(getattr(owner.model, "logits_processor", None), "scale", 1.0) > 0)
    return answers.bind_top_tokens(owner.model)


def _heads(model: Any) -> Iterator[tuple[Any, str, str, Any]]:
    """(parent, attribute, path, head) of every LM head reference in a drafter, shared ones once per reference."""
    from vllm.model_executor.layers.vocab_parallel_embedding import VocabParallelEmbedding

    for path, parent in model.named_modules():
        for attribute in HEAD_ATTRIBUTES:
            child = parent._modules.get(attribute)
            child = getattr(child, "base_layer", child)
            if isinstance(child, VocabParallelEmbedding):
                yield parent, attribute, f"{path}.{attribute}".lstrip("."), child


def _some_rows(head: Any) -> Any | None:
    """A copy of about 64 rows of a head, or None if it has no plain weight."""
    weight = getattr(head, "weight", None)
    return (
        None
        if weight is None or weight.dim() != 2 or weight.is_meta
        else weight[:: max(1, weight.shape[0] // 64)].clone()
    )


def _came_late(head: Any, before: Any | None) -> bool:
    """True if these rows are not what the head under the same path held before sharing."""
    import torch

    after = _some_rows(head)
    return before is not None and after is not None and not (before.shape == after.shape and torch.equal(before, after))
