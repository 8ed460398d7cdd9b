"""What a profile may say: the pydantic models, and nothing but the rules that need no file, no network and no machine.

One model, several uses: profiles.py checks files with it, `radiance profiles schema` prints its JSON Schema for editors, the
Helm chart puts that schema into its own, and docs/profiles.md has the table made from it. Fields that are options of vLLM
have vLLM's name with underscores (owned.ENGINE_FIELDS); all other options of vLLM go into `args`.
"""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Literal

from packaging.version import InvalidVersion, Version
from pydantic import AfterValidator, Field, field_validator, model_validator

from launcher.owned import FIELDS, LAUNCHER, SECRETS, owned
from launcher.secrets import looks_secret
from launcher.sections import (
    SINCE,
    Accelerator,
    Architecture,
    Drafter,
    Expected,
    Model,
    Speculative,
    Strict,
    Tokenizer,
    Verified,
)
from radiance.settings import MAX_RERANK, Require

NAME = r"^[a-z0-9]([a-z0-9._-]*[a-z0-9])?$"
#: they move what the launcher itself reads and writes: a hub's address, its cache, the cache of the embedded model
PLACES = ("HF_HOME", "HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "HF_ENDPOINT", "XDG_CACHE_HOME", "HOME")
#: settings of the plugin that a profile sets by field -> that field
OWN_VARIABLES = {
    "RADIANCE_FAST_DRAFT": "fast_draft",
    "RADIANCE_DRAFT_RERANK": "rerank",
    "RADIANCE_REQUIRE": "require",
    "RADIANCE_DRAFT_VOCAB": "draft_vocab",
    "RADIANCE_SHADOW_SAMPLE": "shadow_sample",
}


def _version(value: str) -> str:
    try:
        Version(value)
    except InvalidVersion:
        raise ValueError(f"{value!r} is not a version such as 0.33.0; quote it, or YAML makes a number of it") from None
    return value


VersionText = Annotated[str, AfterValidator(_version)]
Scalar = bool | int | float | str


class FastDraft(StrEnum):
    ENABLED = "enabled"
    DISABLED = "disabled"
    SHADOW = "shadow"


class Profile(Strict):
    schema_version: Literal[1]
    name: str = Field(pattern=NAME, max_length=63, description="as the file is called")
    extends: str | None = Field(
        default=None, description="the profile this one changes; what is not given here is taken from it"
    )
    summary: str = Field(min_length=1)
    model: Model
    drafter: Drafter | None = None
    tokenizer: Tokenizer | None = None
    served_name: str = Field(min_length=1, description="model name of the API")
    aliases: list[str] = Field(default_factory=list, description="more names for the same model")
    tensor_parallel_size: int = Field(default=1, ge=1)
    pipeline_parallel_size: int = Field(default=1, ge=1)
    data_parallel_size: int = Field(default=1, ge=1)
    max_model_len: int | None = Field(default=None, ge=1, description="context in tokens; null: the model's own")
    max_num_seqs: int | None = Field(default=None, ge=1, description="sequences at once")
    max_num_batched_tokens: int | None = Field(default=None, ge=1)
    gpu_memory_utilization: float | None = Field(
        default=None, gt=0, le=1, description="share of each accelerator's memory"
    )
    kv_cache_memory_bytes: int | None = Field(
        default=None, ge=1, description="pins the KV cache instead of gpu_memory_utilization; for each accelerator"
    )
    kv_cache_dtype: str | None = Field(default=None, min_length=1)
    speculative: Speculative | None = None
    fast_draft: FastDraft = FastDraft.DISABLED
    rerank: Annotated[int, Field(ge=1, le=MAX_RERANK)] | None = Field(
        default=None, description="rows rescored exactly; null: 32, or four times selector_top_k"
    )
    draft_vocab: Path | None = Field(default=None, description="file with the token ids the drafter may propose")
    shadow_sample: Annotated[int, Field(ge=0)] | None = Field(
        default=None, description="check 1 of so many calls against the stock head"
    )
    require: Require = Require.WARN
    args: dict[str, Scalar | list[Scalar] | dict[str, Any]] = Field(
        default_factory=dict, description="other options of `vllm serve`, long names without dashes in front"
    )
    env: dict[str, str] = Field(default_factory=dict, description="environment of vLLM; no secrets")
    accelerator: Accelerator = Accelerator()
    min_vllm: VersionText = "0.26.0"
    max_vllm: VersionText | None = Field(default=None, description="the newest release it works with")
    startup_budget_seconds: int = Field(default=600, ge=1)
    architecture: Architecture | None = None
    expected: Expected = Expected()
    verified: Literal["no"] | list[Verified] = "no"

    @field_validator("fast_draft", mode="before")
    @classmethod
    def _no_boolean(cls, value: object) -> object:
        if isinstance(value, bool):
            word = "enabled" if value else "disabled"
            raise ValueError(f"write {word}, not {str(value).lower()}: there are three modes")
        return value

    @field_validator("env", mode="before")
    @classmethod
    def _text_values(cls, value: object) -> object:
        if isinstance(value, dict):
            return {name: item if isinstance(item, (dict, list, bool)) else str(item) for name, item in value.items()}
        return value

    @field_validator("env")
    @classmethod
    def _own_env(cls, value: dict[str, str]) -> dict[str, str]:
        for name in value:
            if name.startswith("RADIANCE_"):
                field = OWN_VARIABLES.get(name)
                raise ValueError(
                    f"{name} is set through the field {field}" if field else f"{name} is the launcher's to set"
                )
            if looks_secret(name):
                raise ValueError(
                    f"{name} looks like a secret; a profile is no place for one, set it in the environment"
                )
            if name in PLACES:
                raise ValueError(
                    f"{name} is for the launcher too, which fetches the models; set it in the environment, not in a profile"
                )
        return value

    @field_validator("args")
    @classmethod
    def _own_args(cls, value: dict[str, Any]) -> dict[str, Any]:
        for name in value:
            if name.startswith("-") or "_" in name:
                right = name.lstrip("-").replace("_", "-")
                raise ValueError(f"write {right!r} instead of {name!r}: long names, no dashes in front")
            flag = owned(name.split(".")[0])
            if flag in FIELDS:
                raise ValueError(f"{name} is set through {FIELDS[flag]}")
            if flag in SECRETS:
                raise ValueError(f"{name} is set through the environment variable {SECRETS[flag]}")
            if flag in LAUNCHER:
                raise ValueError(f"{name} is the launcher's to set: {LAUNCHER[flag].here}")
        return value

    @field_validator("draft_vocab")
    @classmethod
    def _absolute(cls, value: Path | None) -> Path | None:
        if value is not None and not value.is_absolute():
            raise ValueError(f"{value} is a relative path; give an absolute one: workers may run elsewhere")
        return value

    @model_validator(mode="after")
    def _together(self) -> Profile:
        spec, on = self.speculative, self.fast_draft is not FastDraft.DISABLED
        if self.drafter and not spec:
            raise ValueError("drafter without speculative: nothing would use it")
        if on and not spec:
            raise ValueError(f"fast_draft is {self.fast_draft} but there is no speculative: no draft head to replace")
        if on and spec and spec.draft_lm_head_quantization:
            raise ValueError(
                f"fast_draft is {self.fast_draft} and speculative.draft_lm_head_quantization is "
                f"{spec.draft_lm_head_quantization}: one head, one of them; set fast_draft to disabled or remove the other"
            )
        for key, since in SINCE.items() if spec else ():
            if getattr(spec, key) is not None and Version(self.min_vllm) < Version(since):
                raise ValueError(
                    f"speculative.{key} came with vLLM {since} and min_vllm is {self.min_vllm}; set it to '{since}'"
                )
        top_k = self.drafter.selector_top_k if self.drafter else None
        if top_k and self.rerank is not None and self.rerank < 4 * top_k:
            raise ValueError(
                f"rerank is {self.rerank} but must be at least 4 x drafter.selector_top_k = {4 * top_k}: below that the "
                "selector's candidates are cut (DFlash2, 16 candidates: r = 32 cost 5 % of acceptance, r = 64 none)"
            )
        if self.gpu_memory_utilization and self.kv_cache_memory_bytes:
            raise ValueError("gpu_memory_utilization and kv_cache_memory_bytes both size the KV cache; give one")
        if self.max_vllm and Version(self.max_vllm) < Version(self.min_vllm):
            raise ValueError(f"max_vllm {self.max_vllm} is older than min_vllm {self.min_vllm}")
        return self

    @property
    def world_size(self) -> int:
        """Accelerators the profile needs."""
        return self.tensor_parallel_size * self.pipeline_parallel_size * self.data_parallel_size
