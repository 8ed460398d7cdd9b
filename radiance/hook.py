"""Puts DraftHead into vLLM's drafters. The only file that knows vLLM.

Seams, read in vLLM 0.26, 0.29, 0.32 and 0.33 (V1 = v1/spec_decode, V2 = v1/worker/gpu/spec_decode):

| class, attribute | where | what we do | if it is absent |
|---|---|---|---|
| SpecDecodeBaseProposer.load_model | V1 llm_base_proposer | after it: replace the drafter's heads | this runner: no head; WARNING, status.problem |
| DraftModelSpeculator.load_model | V2 speculator | the same | the same |
| BaseModelLoader.load_model | model_loader.base_loader | look whether the drafter's head is still empty | lateness is not reported |
| LogitsProcessor._apply_head | layers.logits_processor | row callers: our row, in head_dtype | our quant_method.apply answers; no head_dtype |
| LogitsProcessor.get_top_tokens | the same | argmax callers: token ids, no [m, n] row | through the row |
| LogitsProcessor.get_top_k_tokens | the same (0.29+) | top-k callers | through the row |
| head.quant_method.apply, .weight, .weight_scale, .shard_indices, .tp_size | ParallelLMHead | read once when a head is replaced | DECLINED(reason) |
| use_local_argmax_reduction, speculative_config | proposer, speculator | turned on for greedy drafts | left as it is |

Why after load_model and not in Model.load_weights: only then has vLLM shared the target's head into the drafter (MTP, EAGLE
and DFlash all do), dummy and sharded loaders pass here too, and the packed bytes are still inside the accounting that sizes
the KV cache. The drafter gets a head module of its own; the target's stays the same object.
"""  # noqa: E501

from __future__ import annotations

import functools
import logging
import sys
import threading
from collections.abc import Callable, Iterator
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import ModuleType
from typing import TYPE_CHECKING, Any

from radiance.settings import Mode, Settings
from radiance.status import HeadState, HeadStatus, Phase

if TYPE_CHECKING:
    from radiance.head import DraftHead
    from radiance.telemetry import Telemetry

log = logging.getLogger("vllm.radiance")

#: attribute names under which drafters keep their LM head. DSpark's markov_w2 and Gemma4's masked embedder have other names
HEAD_ATTRIBUTES = ("lm_head", "head")

_loading = threading.local()


def install(settings: Settings, problem: str = "") -> None:
    """Leave post-import hooks for the seams. `problem`: a bad setting; then nothing is replaced, only reported."""
    patches: dict[str, Callable[[ModuleType], None]] = {
        "vllm.v1.spec_decode.llm_base_proposer": lambda m: _wrap_load(m, "SpecDecodeBaseProposer", settings, problem),
        "vllm.v1.worker.gpu.spec_decode.speculator": lambda m: _wrap_load(m, "DraftModelSpeculator", settings, problem),
    }
    if not problem:
        patches["vllm.model_executor.model_loader.base_loader"] = _wrap_loader
        patches["vllm.model_executor.layers.logits_processor"] = _wrap_logits_processor
    pending = {}
    for name, patch in patches.items():
        if name in sys.modules:
            _apply(patch, sys.modules[name])
        else:
            pending[name] = patch
    sys.meta_path.insert(0, _AfterImport(pending))


class _AfterImport(MetaPathFinder):
    """Calls a function once, right after a named module has been executed. Costs a dict lookup for every other import."""

    def __init__(self, pending: dict[str, Callable[[ModuleType], None]]) -> None:
        self.pending = pending

    def find_spec(self, fullname: str, path: object = None, target: object = None) -> ModuleSpec | None:
        patch = self.pending.pop(fullname, None)
        if patch is None:
            return None
        try:
            spec = find_spec(fullname)  # for a moment this finder does not know the name, so the ordinary ones answer
        finally:
            self.pending[fullname] = patch  # finding is not importing: only an executed module is done with
        if spec is None or spec.loader is None:
            return None
        spec.loader = _PatchingLoader(spec.loader, self.pending)
        return spec


class _PatchingLoader(Loader):
    def __init__(self, inner: Loader, pending: dict[str, Callable[[ModuleType], None]]) -> None:
        self.inner = inner
        self.pending = pending

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self.inner.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        self.inner.exec_module(module)
        patch = self.pending.pop(module.__name__, None)
        if patch is not None:
            _apply(patch, module)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)


def _apply(patch: Callable[[ModuleType], None], module: ModuleType) -> None:
    try:
        patch(module)
    except Exception:  # an import of vLLM must never fail because of us
        log.exception("Radiance could not patch %s; the stock draft head is used", module.__name__)


def _wrap(owner: type, name: str, make: Callable[[Any], Any]) -> bool:
    """Replace method `name` of a class once. False, with a WARNING, if this vLLM does not have it."""
    original = owner.__dict__.get(name)
    if original is None:
        log.warning(
            "Radiance: %s.%s is not there in this vLLM; see the seam table in radiance/hook.py", owner.__name__, name
        )
        return False
    if not hasattr(original, "__radiance__"):
        wrapped = functools.wraps(original)(make(original))
        wrapped.__radiance__ = True  # type: ignore[attr-defined]
        setattr(owner, name, wrapped)
    return True


# -- load time -------------------------------------------------------------------------------------------------------------


def _wrap_load(module: ModuleType, class_name: str, settings: Settings, problem: str) -> None:
    owner = getattr(module, class_name, None)
    if owner is None:
        log.warning(
            "Radiance: %s.%s is not there in this vLLM; the stock draft head is used", module.__name__, class_name
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
            try:
                arm(self, settings, problem, early)
            except Exception as error:  # the server goes on with the stock head
                log.exception("Radiance declined: arming the drafter failed")
                _telemetry(settings).problem(f"arming failed: {error!r}")
            return result

        return load_model

    _wrap(owner, "load_model", make)


def _wrap_loader(module: ModuleType) -> None:
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

    _wrap(module.BaseModelLoader, "load_model", make)


def arm(owner: Any, settings: Settings, problem: str, early: list[dict[str, Any]]) -> None:
    """Replace every LM head of a loaded drafter. `owner` is vLLM's proposer (V1) or speculator (V2).

    `early`: rows of the drafter's heads before sharing. A head that came to hold other values (DFlash has none of its own:
    zeros, or whatever lay in that memory) was not final then; its quantisation had to wait and is reported as lazy.
    """
    import torch

    telemetry = _telemetry(settings)
    if problem:
        telemetry.problem(problem)
        return
    drafter = owner.model
    config = owner.speculative_config
    rival = getattr(config, "draft_lm_head_quantization", None)
    if rival:
        telemetry.problem(
            f"draft_lm_head_quantization={rival} is set: vLLM's own quantised draft head is used, Radiance stands "
            "down; unset one of the two"
        )
        return
    refused = _refusal(owner)
    if refused:
        telemetry.problem(refused)
        return
    found = list(_heads(drafter))
    if not found:
        telemetry.problem(f"no LM head found in drafter {type(drafter).__name__}; the stock head is used")
        return
    lossy = getattr(config, "rejection_sample_method", "standard")
    if lossy in ("fly", "synthetic"):
        log.warning(
            "rejection_sample_method=%s changes the output distribution by itself, with or without Radiance", lossy
        )
    before = {path: rows for report in early for path, rows in report.items()}
    replaced: dict[int, Any] = {}
    with torch.no_grad():
        for parent, attribute, path, head in found:
            if id(head) not in replaced:
                replaced[id(head)] = _replacement(
                    head, path, owner, settings, telemetry, _came_late(head, before.get(path))
                )
            module = replaced[id(head)]
            if module is not None:
                delattr(parent, attribute)
                setattr(parent, attribute, module)
    ours = [module for module in replaced.values() if module is not None]
    if ours and settings.mode is Mode.ON and ours[0].tp_size == 1 and _token_ids_suffice(owner):
        owner.use_local_argmax_reduction = True
    telemetry.flush()


def _refusal(owner: Any) -> str:
    """Why this drafter or engine keeps its stock head, or nothing."""
    drafter, config = owner.model, owner.vllm_config
    if getattr(drafter, "masked_embedding", None) is not None:
        return f"{type(drafter).__name__} proposes through a masked embedding, not through its LM head"
    if hasattr(drafter, "compute_draft_logits"):
        return f"{type(drafter).__name__} needs a full finite row (its Markov bias is added after the head); not supported yet"
    if getattr(config.model_config, "enable_sleep_mode", False):
        return "sleep mode discards or moves the packed copy; not supported yet, start without --enable-sleep-mode"
    if getattr(config, "weight_transfer_config", None) is not None:
        return "weight transfer replaces the head that was packed; not supported yet"
    return ""


def _token_ids_suffice(owner: Any) -> bool:
    """True if drafts are greedy and nothing but the winning ids is asked of the drafter: then no [m, n] row need exist."""
    return (
        getattr(owner.speculative_config, "draft_sample_method", "greedy") == "greedy"
        and hasattr(owner.model, "get_top_tokens")
        and not hasattr(owner.model, "masked_embedding")  # Gemma4's get_top_tokens asserts that it has one
        and getattr(getattr(owner.model, "logits_processor", None), "scale", 1.0) > 0  # get_top_tokens refuses others
        and not getattr(owner, "use_heterogeneous_vocab", False)
        and getattr(owner, "acceptance_estimator", None) is None
    )


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


class RadianceLMHead:
    """Marks a head module of ours; `radiance` is its DraftHead, `source` the head that it replaces."""

    radiance: DraftHead
    source: Any
    tp_size: int
    shard_indices: Any


def _replacement(head: Any, path: str, owner: Any, settings: Settings, telemetry: Telemetry, late: bool) -> Any | None:
    """A head module that shares `head`'s parameters and answers through a DraftHead; None if declined by name."""
    from radiance.errors import UnsupportedHead
    from radiance.head import DraftHead

    drafter = type(owner.model).__name__
    status = HeadStatus(name=path, state=HeadState.OFF, drafter=drafter)
    telemetry.add(status)
    try:
        source = _source(head)
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
    )
    telemetry.follow(status, draft.refresh)
    if late:
        draft.move(HeadState.WAITING, "not_filled_at_load", Phase.LOAD)
    draft.pack(Phase.LOAD, late=late)
    if status.state is HeadState.DECLINED:
        return None
    cls = type("RadianceLMHead", (RadianceLMHead, type(head)), {})
    module: Any = cls.__new__(cls)  # type: ignore[call-overload]
    for name, value in head.__dict__.items():  # parameters and buffers are shared, the containers are our own
        module.__dict__[name] = dict(value) if name in ("_parameters", "_buffers", "_modules") else value
    module.__dict__["source"] = head  # not a submodule: its weights must not be listed twice
    module.__dict__["radiance"] = draft
    module.__dict__["quant_method"] = _Method(head.quant_method)
    return module


def _draft_vocab(head: Any, owner: Any, settings: Settings) -> Any | None:
    """Local rows of RADIANCE_DRAFT_VOCAB, end-of-sequence ids included; None if unset. Raises UnsupportedHead."""
    from radiance import vocab
    from radiance.errors import UnsupportedHead
    from radiance.settings import DEFAULT_RERANK

    if settings.draft_vocab is None:
        return None
    if getattr(owner.model, "draft_id_to_target_id", None) is not None:
        raise UnsupportedHead(
            "draft_vocab", "this drafter has a reduced vocabulary of its own (d2t); unset RADIANCE_DRAFT_VOCAB"
        )
    config = owner.vllm_config.model_config
    ends = [
        getattr(config.hf_text_config, "eos_token_id", None),
        (config.try_get_generation_config() or {}).get("eos_token_id"),
    ]
    always = [token for end in ends if end is not None for token in (end if isinstance(end, list) else [end])]
    shard = head.shard_indices
    ids = vocab.read(settings.draft_vocab, head.org_vocab_size)
    start, stop = shard.org_vocab_start_index, shard.org_vocab_end_index
    return vocab.shard(ids, start, stop, settings.rerank or DEFAULT_RERANK, always)


def _source(head: Any) -> Any:
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


class _Method:
    """The head's quant_method: apply() goes through the DraftHead, all else is the original's."""

    def __init__(self, original: Any) -> None:
        self.original = original

    def apply(self, layer: Any, x: Any, bias: Any = None) -> Any:
        return _row(layer, x, bias, lambda: self.original.apply(layer.source, x, bias=bias))

    def __getattr__(self, name: str) -> Any:
        return getattr(self.original, name)


# -- call time -------------------------------------------------------------------------------------------------------------


def _wrap_logits_processor(module: ModuleType) -> None:
    owner = module.LogitsProcessor

    def apply_head(original: Callable[..., Any]) -> Callable[..., Any]:
        def _apply_head(self: Any, lm_head: Any, hidden_states: Any, embedding_bias: Any = None) -> Any:
            if not isinstance(lm_head, RadianceLMHead):
                return original(self, lm_head, hidden_states, embedding_bias)
            row = _row(
                lm_head,
                hidden_states,
                embedding_bias,
                lambda: original(self, lm_head.source, hidden_states, embedding_bias),
            )
            return row if self.head_dtype is None else row.to(self.head_dtype)

        return _apply_head

    def top_tokens(original: Callable[..., Any]) -> Callable[..., Any]:
        def get_top_tokens(self: Any, lm_head: Any, hidden_states: Any, embedding_bias: Any = None) -> Any:
            if not isinstance(lm_head, RadianceLMHead):
                return original(self, lm_head, hidden_states, embedding_bias)
            if lm_head.tp_size > 1 or self.scale <= 0:
                return original(self, lm_head, hidden_states, embedding_bias)  # through the row
            stock = functools.partial(original, self, lm_head.source, hidden_states, embedding_bias)

            def ours(draft: DraftHead) -> Any:
                if draft.shadow or draft.due_for_check(_capturing(hidden_states)):
                    draft.compare(hidden_states, self._apply_head(lm_head.source, hidden_states, embedding_bias))
                    return stock()
                return draft.top_tokens(hidden_states)[0] + lm_head.shard_indices.org_vocab_start_index

            return _answer(lm_head, hidden_states, embedding_bias, stock, ours)

        return get_top_tokens

    def top_k(original: Callable[..., Any]) -> Callable[..., Any]:
        def get_top_k_tokens(
            self: Any, lm_head: Any, hidden_states: Any, k: int, embedding_bias: Any = None, **kwargs: Any
        ) -> Any:
            if not isinstance(lm_head, RadianceLMHead):
                return original(self, lm_head, hidden_states, k, embedding_bias, **kwargs)
            stock = functools.partial(original, self, lm_head.source, hidden_states, k, embedding_bias, **kwargs)
            if kwargs.get("return_log_probs") or lm_head.tp_size > 1 or lm_head.radiance.shadow or self.scale <= 0:
                # A log-partition needs a full finite row, TP a second top-k: not by the 2-bit path in this version.
                lm_head.radiance.count_stock("log_probs" if kwargs.get("return_log_probs") else "top_k")
                return stock()

            def ours(draft: DraftHead) -> Any:
                import torch

                ids, values = draft.top_k(hidden_states, k)
                values = values.float() * self.scale
                if self.soft_cap is not None:
                    values = torch.tanh(values / self.soft_cap) * self.soft_cap
                return ids + lm_head.shard_indices.org_vocab_start_index, values

            return _answer(lm_head, hidden_states, embedding_bias, stock, ours)

        return get_top_k_tokens

    _wrap(owner, "_apply_head", apply_head)
    _wrap(owner, "get_top_tokens", top_tokens)
    _wrap(owner, "get_top_k_tokens", top_k)


def _row(head: Any, x: Any, bias: Any, stock: Callable[[], Any]) -> Any:
    """[m, n] for a row caller. Shadow and sampled checks serve the stock row and count where the 2-bit path parts from it."""

    def ours(draft: DraftHead) -> Any:
        if not draft.shadow and not draft.due_for_check(_capturing(x)):
            return draft.row(x)
        row = stock()
        draft.compare(x, row)
        return row

    return _answer(head, x, bias, stock, ours)


def _answer(head: Any, x: Any, bias: Any, stock: Callable[[], Any], ours: Callable[[DraftHead], Any]) -> Any:
    """Ours if the head is usable, else the stock answer; an exception in ours declines the head and is not seen outside."""
    draft = head.radiance
    if bias is not None or x.dim() != 2 or x.shape[0] == 0:
        draft.count_stock("bias" if bias is not None else "shape")
        return stock()
    capturing = _capturing(x)
    if draft.shadow and capturing:  # a comparison synchronises, which a capture forbids
        draft.count_stock("capture")
        return stock()
    try:
        if draft.usable(x.shape[0], capturing):
            return ours(draft)
    except Exception as error:
        log.exception("Radiance draft head %s failed; the stock head takes over", draft.status.name)
        draft.decline("call_failed", repr(error))
    return stock()


def _capturing(x: Any) -> bool:
    import torch

    return bool(x.is_cuda and torch.cuda.is_current_stream_capturing())


current: Telemetry | None = None


def _telemetry(settings: Settings) -> Telemetry:
    """This process's status writer; started by the first drafter, so only worker processes have one."""
    global current
    if current is None:
        import torch

        from radiance.telemetry import Telemetry

        distributed = torch.distributed.is_available() and torch.distributed.is_initialized()
        version = getattr(sys.modules.get("vllm"), "__version__", "")
        device = torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu"
        current = Telemetry(settings.state_dir, torch.distributed.get_rank() if distributed else 0, version, device)
    return current
