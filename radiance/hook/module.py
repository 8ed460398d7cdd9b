"""The head module that a drafter gets instead of its own: the same parameters, answered through a DraftHead."""

from __future__ import annotations

import logging
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from radiance.hook import worker
from radiance.settings import Mode, Settings
from radiance.status import HeadState, HeadStatus, Phase

if TYPE_CHECKING:
    from radiance.head import DraftHead
    from radiance.telemetry import Telemetry

log = logging.getLogger("vllm.radiance")

#: under this name a head knows the module that replaces it in drafters, as long as one has it
_MADE = "radiance_module"


class RadianceLMHead:
    """Marks a head module of ours; `radiance` is its DraftHead, `source` the head that it replaces. `wants_full_row`: its
    callers need coarse values where there are no exact ones."""

    radiance: DraftHead
    source: Any
    tp_size: int
    shard_indices: Any
    wants_full_row: bool


def replacement(head: Any, path: str, owner: Any, settings: Settings, telemetry: Telemetry, late: bool) -> Any | None:
    """A head module that shares `head`'s parameters and answers through a DraftHead; None if declined by name.

    A head that already has one gets the same: vLLM may share a head again, and there is one packed copy for each.
    """
    from radiance.errors import UnsupportedHead
    from radiance.head import DraftHead

    made = head.__dict__.get(_MADE, lambda: None)()
    if made is not None and made.radiance.status.state is not HeadState.DECLINED:
        return made
    drafter = type(owner.model).__name__
    status = HeadStatus(name=path, state=HeadState.OFF, drafter=drafter)
    telemetry.add(status)
    try:
        source = source_of(head)
        vocab = _draft_vocab(head, owner, settings)
    except Exception as error:
        log.warning("Radiance draft head %s (%s) declined: %s", path, drafter, error)
        status.enter(HeadState.DECLINED, error.reason if isinstance(error, UnsupportedHead) else "arming_failed")
        return None
    draft = DraftHead(
        source,
        status,
        dtype=head.params_dtype,
        vocab=vocab,
        n_valid=head.shard_indices.num_org_elements,
        rerank=settings.rerank,
        shadow=settings.mode is Mode.SHADOW,
        shadow_sample=settings.shadow_sample,
        round_to=getattr(owner.vllm_config.model_config, "head_dtype", None),
    )
    telemetry.follow(status, draft.refresh)
    if late:
        draft.move(HeadState.WAITING, "not_filled_at_load", Phase.LOAD)
    draft.pack(Phase.LOAD, late=late)
    if status.state is HeadState.DECLINED:
        return None
    worker.heads.add(draft)
    cls = type("RadianceLMHead", (RadianceLMHead, type(head)), {})
    module: Any = cls.__new__(cls)  # type: ignore[call-overload]
    for name, value in head.__dict__.items():  # parameters and buffers are shared, the containers are our own
        own = name in ("_parameters", "_buffers", "_modules")
        module.__dict__[name] = value.copy() if own else value
    module.__dict__["source"] = head  # not a submodule: its weights must not be listed twice
    module.__dict__["radiance"] = draft
    module.__dict__["quant_method"] = _Method(head.quant_method)
    module.__dict__["wants_full_row"] = hasattr(owner.model, "compute_draft_logits")  # DSpark, XPress add a bias to it
    head.__dict__[_MADE] = weakref.ref(module)
    return module


def source_of(head: Any) -> Any:
    """The rows of a vLLM head as a Source. Raises UnsupportedHead with the name of what is not supported."""
    from radiance.errors import UnsupportedHead
    from radiance.source import Source

    weight = getattr(head, "weight", None)
    if weight is None or weight.dim() != 2:
        raise UnsupportedHead(
            "quantised_head", f"head with {type(head.quant_method).__name__} has no plain weight [n, k]"
        )
    if weight.is_meta:
        raise UnsupportedHead("meta", "the head has no memory (meta device)")
    scale = getattr(head, "weight_scale", None)
    if weight.shape[1] != head.embedding_dim and weight.shape[0] == head.embedding_dim:
        weight = weight.t()  # FP8 methods keep [k, n]
    if getattr(head, "bias", None) is not None:
        raise UnsupportedHead("bias", "a head with a bias is not supported")
    return Source(weight.detach(), None if scale is None else scale.detach().reshape(-1))


def _draft_vocab(head: Any, owner: Any, settings: Settings) -> Any | None:
    """Local rows of RADIANCE_DRAFT_VOCAB, special tokens included; None if unset. Raises UnsupportedHead."""
    from radiance import vocab
    from radiance.errors import UnsupportedHead
    from radiance.settings import DEFAULT_RERANK

    if settings.draft_vocab is None:
        return None
    if getattr(owner.model, "draft_id_to_target_id", None) is not None:
        raise UnsupportedHead(
            "draft_vocab", "this drafter has a reduced vocabulary of its own (d2t); unset RADIANCE_DRAFT_VOCAB"
        )
    always = _special_ids(owner.vllm_config.model_config)
    shard = head.shard_indices
    ids = vocab.read(settings.draft_vocab, head.org_vocab_size)
    start, stop = shard.org_vocab_start_index, shard.org_vocab_end_index
    return vocab.shard(ids, start, stop, settings.rerank or DEFAULT_RERANK, always)


def _special_ids(config: Any) -> list[int]:
    """Ids that a draft vocabulary always has, so that turns and sequences can end: those of the end of a sequence, and what
    the tokenizer calls special. `config` is vLLM's ModelConfig."""
    ends = [
        getattr(config.hf_text_config, "eos_token_id", None),
        (config.try_get_generation_config() or {}).get("eos_token_id"),
    ]
    ids = [token for end in ends if end is not None for token in (end if isinstance(end, list) else [end])]
    if getattr(config, "skip_tokenizer_init", False):
        return ids
    try:
        from transformers import AutoTokenizer

        tokenizer = AutoTokenizer.from_pretrained(
            config.tokenizer, revision=config.tokenizer_revision, trust_remote_code=config.trust_remote_code
        )
        added = [
            token for token, what in tokenizer.added_tokens_decoder.items() if what.special
        ]  # <|im_start|> and such
        return sorted({*ids, *tokenizer.all_special_ids, *added})
    except Exception as error:  # drafts lose a few special tokens, no more
        log.warning(
            "Radiance: the tokenizer's special tokens are not known (%r); the draft vocabulary lacks them", error
        )
        return ids


class _Method:
    """The head's quant_method: apply() goes through the DraftHead, all else is the original's."""

    def __init__(self, original: Any) -> None:
        self.original = original

    def apply(self, layer: Any, x: Any, bias: Any = None) -> Any:
        from radiance.hook.answers import row

        stock: Callable[[], Any] = lambda: self.original.apply(layer.source, x, bias=bias)  # noqa: E731
        return row(layer, x, bias, stock)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.original, name)
