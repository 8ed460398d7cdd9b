"""The sections of a profile: what is served, what drafts for it, what the machine must have, what is known and expected."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

REPOSITORY = r"^[A-Za-z0-9][\w.-]*/[\w.-]+$"


class Kind(StrEnum):
    """Makers of accelerators, and none."""

    NVIDIA = "nvidia"
    AMD = "amd"
    CPU = "cpu"


class Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


def _one_of(section: BaseModel, names: tuple[str, ...]) -> None:
    given = [name for name in names if getattr(section, name)]
    if len(given) != 1:
        choices = f"{', '.join(names[:-1])} and {names[-1]}"
        raise ValueError(f"give exactly one of {choices}; given: {', '.join(given) or 'none'}")
    if getattr(section, "revision", None) and getattr(section, "id", None) is None:
        raise ValueError(f"revision belongs to id; {given[0]} has none")


class Model(Strict):
    """What is served: exactly one of a hub id, an embedded model, or a folder."""

    id: str | None = Field(default=None, pattern=REPOSITORY, description="repository on the model hub")
    embedded: Literal["smollm2"] | None = Field(default=None, description="a model `radiance fetch` prepares by itself")
    path: Path | None = Field(default=None, description="folder of a checkpoint")
    revision: str | None = Field(
        default=None, min_length=1, description="commit or tag; null: whatever the hub's main branch has that day"
    )
    gated: bool = Field(default=False, description="the hub gives it only to a token that accepted its terms")

    @model_validator(mode="after")
    def _source(self) -> Model:
        _one_of(self, ("id", "embedded", "path"))
        return self


class Drafter(Strict):
    """A drafter that is a checkpoint of its own. Left out when the model carries its drafter (MTP)."""

    id: str | None = Field(default=None, pattern=REPOSITORY, description="repository on the model hub")
    path: Path | None = Field(default=None, description="folder of a checkpoint")
    same_as_model: bool = Field(default=False, description="the model drafts for itself: for tests")
    revision: str | None = Field(
        default=None, min_length=1, description="commit or tag; null: the main branch of the day"
    )
    gated: bool = False
    selector_top_k: int | None = Field(
        default=None, ge=1, le=256, description="candidates the drafter takes of each head row (DFlash2: 16 as trained)"
    )

    @model_validator(mode="after")
    def _source(self) -> Drafter:
        _one_of(self, ("id", "path", "same_as_model"))
        return self


class Tokenizer(Strict):
    """A tokenizer from another place than the model."""

    id: str | None = Field(default=None, pattern=REPOSITORY)
    path: Path | None = None
    revision: str | None = Field(default=None, min_length=1)

    @model_validator(mode="after")
    def _source(self) -> Tokenizer:
        _one_of(self, ("id", "path"))
        return self


#: keys of speculative that came with a release; an older vLLM refuses them at start
SINCE = {"draft_lm_head_quantization": "0.33.0"}


class Speculative(Strict):
    """vLLM's speculative_config; its `model` and `revision` come from `drafter`."""

    method: Literal[
        "mtp", "eagle", "eagle3", "dflash", "dspark", "draft_model", "ngram", "ngram_gpu", "suffix", "custom_class"
    ]
    num_speculative_tokens: int = Field(ge=1, le=64, description="depth: draft tokens of a draft")
    draft_tensor_parallel_size: int | None = Field(default=None, ge=1)
    attention_backend: str | None = Field(default=None, min_length=1)
    draft_sample_method: Literal["greedy", "probabilistic"] | None = None
    rejection_sample_method: str | None = Field(default=None, min_length=1)
    draft_lm_head_quantization: Literal["fp8", "nvfp4"] | None = Field(
        default=None, description="vLLM's own quantised draft head; needs fast_draft: disabled"
    )
    use_local_argmax_reduction: bool | None = None
    disable_padded_drafter_batch: bool | None = None
    max_model_len: int | None = Field(default=None, ge=1)
    quantization: str | None = Field(default=None, min_length=1)
    kv_cache_dtype: str | None = Field(default=None, min_length=1)
    moe_backend: str | None = Field(default=None, min_length=1)
    enforce_eager: bool | None = None
    options: dict[str, Any] = Field(default_factory=dict, description="keys of a newer vLLM, passed on unchecked")

    @field_validator("options")
    @classmethod
    def _new_keys_only(cls, value: dict[str, Any]) -> dict[str, Any]:
        for name in value:
            if name in ("model", "revision"):
                raise ValueError(f"{name} is set through the profile's drafter")
            if name in cls.model_fields:
                raise ValueError(f"{name} is a key of speculative itself")
        return value

    def config(self) -> dict[str, Any]:
        """The JSON for vLLM, without the drafter."""
        return {**self.model_dump(exclude={"options"}, exclude_none=True), **self.options}


class Accelerator(Strict):
    """What the machine must have; the number of accelerators follows from the parallel sizes."""

    kinds: list[Kind] = Field(default=[Kind.NVIDIA, Kind.AMD], min_length=1)
    memory_gib_min: float | None = Field(default=None, gt=0, description="of each accelerator")
    compute_capability_min: str | None = Field(default=None, pattern=r"^\d+\.\d+$", description="NVIDIA, such as '8.9'")
    gfx: list[Annotated[str, Field(pattern=r"^gfx[0-9a-f]+$")]] | None = Field(default=None, description="AMD")


class Architecture(Strict):
    """Facts of the checkpoint that `plan` needs to estimate memory and gain without reading it."""

    vocab_size: int | None = Field(default=None, ge=1, description="rows of the draft head")
    hidden_size: int | None = Field(default=None, ge=1, description="columns of the draft head")
    head_bytes_per_weight: float = Field(default=2, gt=0, description="of the head: 2 for bf16, 1 for fp8")
    weight_gib: float = Field(gt=0, description="all weights of the model")
    active_weight_gib: float | None = Field(
        default=None, gt=0, description="read for one token; less than weight_gib in a mixture of experts"
    )
    drafter_gib: float = Field(default=0, ge=0, description="weights of the drafter without heads and embeddings")
    kv_bytes_per_token: int = Field(default=0, ge=0, description="of all layers together, at 16 bit")


class Expected(Strict):
    """What a healthy server shows; outside of it something is wrong with the drafter. The alerts compare with these."""

    acceptance_per_draft: float | None = Field(default=None, ge=0, description="as reported or measured; see verified")
    acceptance_per_draft_min: float | None = Field(default=None, ge=0, description="floor of the alert")
    draft_head_latency_seconds_max: float | None = Field(
        default=None, gt=0, description="mean duration of a draft-head call; above it the alert fires"
    )
    step_seconds: float | None = Field(
        default=None, gt=0, description="measured step of one sequence with the stock head: makes a gain out of a bound"
    )


class Verified(Strict):
    """One place where the profile was seen to work."""

    device: str = Field(min_length=1)
    vllm: str = Field(min_length=1)
    date: str = Field(pattern=r"^\d{4}-\d\d-\d\d$")
    evidence: str = Field(min_length=1, description="the test, command or result file that shows it")
