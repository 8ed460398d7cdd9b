"""Call time: class-level wraps of LogitsProcessor that act only on head modules of ours, and who answers.

Under tensor parallelism a rank whose 2-bit path fails answers with its stock head, and must do the same collectives as the
others: so what is guarded here is the local answer, and the ranks' answers are gathered outside, in vLLM's own shapes.
"""

from __future__ import annotations

import functools
import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import TYPE_CHECKING, Any

from radiance.hook import imports
from radiance.hook.module import RadianceLMHead

if TYPE_CHECKING:
    from radiance.head import DraftHead

log = logging.getLogger("vllm.radiance")

_asked = threading.local()


def wrap(module: ModuleType) -> None:
    owner = module.LogitsProcessor
    for name, make in (
        ("forward", _forward),
        ("_apply_head", _apply_head),
        ("get_top_tokens", _top_tokens),
    ):
        imports.wrap(owner, name, make)
    imports.wrap(owner, "get_top_k_tokens", _top_k, optional=True)  # no drafter of vLLM 0.26 asks for it


# -- the wraps ---------------------------------------------------------------------------------------------------------------


def _apply_head(original: Callable[..., Any]) -> Callable[..., Any]:
    def _apply_head(self: Any, lm_head: Any, hidden_states: Any, embedding_bias: Any = None) -> Any:
        if not isinstance(lm_head, RadianceLMHead):
            return original(self, lm_head, hidden_states, embedding_bias)
        stock = functools.partial(original, self, lm_head.source, hidden_states, embedding_bias)
        values = row(lm_head, hidden_states, embedding_bias, stock)
        return values if self.head_dtype is None else values.to(self.head_dtype)

    return _apply_head


def _forward(original: Callable[..., Any]) -> Callable[..., Any]:
    def forward(
        self: Any, lm_head: Any, hidden_states: Any, embedding_bias: Any = None, *rest: Any, **more: Any
    ) -> Any:
        ids = getattr(_asked, "ids", None)
        if ids is None or embedding_bias is not None or self.scale <= 0:
            return original(self, lm_head, hidden_states, embedding_bias, *rest, **more)
        # A stock head too: on another rank it may be ours, and ids travel otherwise than rows.
        ids.append(hidden_states.new_zeros(1) if _asked.probe else self.get_top_tokens(lm_head, hidden_states))
        return ids[-1]

    return forward


def _top_tokens(original: Callable[..., Any]) -> Callable[..., Any]:
    def get_top_tokens(self: Any, lm_head: Any, hidden_states: Any, embedding_bias: Any = None) -> Any:
        if not isinstance(lm_head, RadianceLMHead):
            return original(self, lm_head, hidden_states, embedding_bias)
        stock = functools.partial(original, self, lm_head.source, hidden_states, embedding_bias)
        if self.scale <= 0:  # the original says why not
            return stock()

        def ours(draft: DraftHead) -> Any:
            if _compared(self, lm_head, hidden_states, embedding_bias, draft):
                return None
            return draft.top_tokens(hidden_states)

        answer = _answer(lm_head, hidden_states, embedding_bias, ours)
        if answer is None:
            return stock()
        ids = answer[0] + lm_head.shard_indices.org_vocab_start_index
        return ids if lm_head.tp_size == 1 else _best_of_ranks(lm_head, ids, _scaled(self, answer[1]))

    return get_top_tokens


def _top_k(original: Callable[..., Any]) -> Callable[..., Any]:
    def get_top_k_tokens(
        self: Any, lm_head: Any, hidden_states: Any, k: int, embedding_bias: Any = None, **kwargs: Any
    ) -> Any:
        if not isinstance(lm_head, RadianceLMHead):
            return original(self, lm_head, hidden_states, k, embedding_bias, **kwargs)
        stock = functools.partial(original, self, lm_head.source, hidden_states, k, embedding_bias, **kwargs)
        log_probs = bool(kwargs.get("return_log_probs"))
        if self.scale <= 0:
            return stock()

        def ours(draft: DraftHead) -> Any:
            import torch

            if _compared(self, lm_head, hidden_states, embedding_bias, draft):
                return None
            if not log_probs:
                return (*draft.top_k(hidden_states, k), None)
            full, ids, values = draft.full_row(hidden_states, k)  # a log-partition is a sum over the whole row
            capped = _scaled(self, full.float()).masked_fill_(full == -torch.inf, -torch.inf)  # tanh made -cap of it
            return ids, values, capped.logsumexp(dim=-1, keepdim=True)

        answer = _answer(lm_head, hidden_states, embedding_bias, ours)
        if answer is None:
            return stock()
        ids, values, partition = answer
        ids = ids + lm_head.shard_indices.org_vocab_start_index
        if log_probs:
            values = _scaled(self, values)
        if lm_head.tp_size > 1:
            ids, values, partition = _top_k_of_ranks(self, hidden_states, k, ids, values, partition)
        values = values.float()
        if log_probs:
            return ids, values - partition
        values = values * self.scale  # here the original scales first
        return ids, values if self.soft_cap is None else (values / self.soft_cap).tanh() * self.soft_cap

    return get_top_k_tokens


# -- who answers -------------------------------------------------------------------------------------------------------------


def row(head: Any, x: Any, bias: Any, stock: Callable[[], Any]) -> Any:
    """[m, n] for a row caller. Shadow and sampled checks serve the stock row and count where the 2-bit path parts from it."""

    def ours(draft: DraftHead) -> Any:
        if draft.shadow or draft.due_for_check(_capturing(x)):
            with draft.stock_clock(x):
                served = stock()
            draft.compare(x, served)
            return served
        return draft.full_row(x)[0] if head.wants_full_row else draft.row(x)

    answer = _answer(head, x, bias, ours)
    return stock() if answer is None else answer


def _compared(processor: Any, head: Any, x: Any, bias: Any, draft: DraftHead) -> bool:
    """True if this call is one to compare, which is done then: the stock head is to answer it."""
    if not draft.shadow and not draft.due_for_check(_capturing(x)):
        return False
    with draft.stock_clock(x):
        row = processor._apply_head(head.source, x, bias)
    draft.compare(x, row)
    return True


def _answer(head: Any, x: Any, bias: Any, ours: Callable[[DraftHead], Any]) -> Any | None:
    """Ours if the head is usable, else None; an exception in ours declines the head and is not seen outside."""
    draft = head.radiance
    if bias is not None or x.dim() != 2 or x.shape[0] == 0:
        draft.count_stock("bias" if bias is not None else "shape")
        return None
    capturing = _capturing(x)
    if draft.shadow and capturing and not draft.on_device:  # the host's comparison synchronises: no capture allows it
        draft.count_stock("capture")
        return None
    try:
        if draft.usable(x.shape[0], capturing):
            return ours(draft)
    except Exception as error:
        log.exception("Radiance draft head %s failed; the stock head takes over", draft.status.name)
        draft.decline("call_failed", repr(error))
    return None


def _capturing(x: Any) -> bool:
    import torch

    return bool(x.is_cuda and torch.cuda.is_current_stream_capturing())


def _scaled(processor: Any, values: Any) -> Any:
    """Soft cap and scale, as get_top_tokens and get_top_k_tokens apply them."""
    if processor.soft_cap is not None:
        values = (values / processor.soft_cap).tanh() * processor.soft_cap
    return values if processor.scale == 1.0 else values * processor.scale


# -- tensor parallel ranks ---------------------------------------------------------------------------------------------------


def _best_of_ranks(head: Any, ids: Any, values: Any) -> Any:
    """Global ids int64 [m] of the best of all ranks: one gather of fp32 pairs (value, id), exact for ids under 2^24."""
    import torch
    from vllm.distributed import tensor_model_parallel_all_gather

    pairs = tensor_model_parallel_all_gather(torch.stack([values.float(), ids.float()], dim=-1), dim=-1)
    pairs = pairs.view(len(ids), head.tp_size, 2)
    best = pairs[:, :, 0].argmax(dim=-1, keepdim=True)
    return pairs[:, :, 1].gather(-1, best).squeeze(-1).to(torch.int64)


def _top_k_of_ranks(
    processor: Any, x: Any, k: int, ids: Any, values: Any, partition: Any | None
) -> tuple[Any, Any, Any]:
    """The k best of all ranks, and the log-partition over all of them, gathered in the order of the original."""
    from vllm.distributed import tensor_model_parallel_all_gather

    if partition is not None:
        partition = tensor_model_parallel_all_gather(partition, dim=-1).logsumexp(dim=-1, keepdim=True)
    values = tensor_model_parallel_all_gather(values.to(processor.head_dtype or x.dtype), dim=-1)
    ids = tensor_model_parallel_all_gather(ids, dim=-1)
    values, chosen = values.topk(k, dim=-1)
    return ids.gather(-1, chosen), values, partition


# -- models without get_top_tokens -------------------------------------------------------------------------------------------


@contextmanager
def _ids_asked(probe: bool) -> Iterator[list[Any]]:
    """In here LogitsProcessor.forward answers with token ids [m] instead of a row; the answers it gave come in the list."""
    _asked.ids, _asked.probe = [], probe
    try:
        yield _asked.ids
    finally:
        _asked.ids = None


def bind_top_tokens(model: Any) -> bool:
    """Give a drafter a get_top_tokens that goes through its own compute_logits (which may choose a layer's head, or norm the
    hidden states). False, and nothing is bound, if compute_logits does more to the logits than return them."""
    import torch

    head = next((m for m in model.modules() if isinstance(m, RadianceLMHead)), None)
    if head is None or not hasattr(model, "compute_logits"):
        return False
    like = head.radiance.source.weight
    try:
        with _ids_asked(probe=True) as answers, torch.no_grad():
            out = model.compute_logits(torch.zeros(1, like.shape[1], dtype=head.radiance.dtype, device=like.device))
    except Exception as error:  # it did something to what it took for logits
        log.info("Radiance: %s.compute_logits is not the head alone (%r); rows, not ids", type(model).__name__, error)
        return False
    if not answers or out is not answers[-1]:
        return False

    def get_top_tokens(hidden_states: Any, **kwargs: Any) -> Any:
        with _ids_asked(probe=False) as given:
            found = model.compute_logits(hidden_states, **kwargs)
        return found if given and found is given[-1] else found.argmax(dim=-1)

    model.get_top_tokens = get_top_tokens
    return True
