"""Options of `vllm serve` that are not free: what owns each, for `args` of a profile, for what follows `--`, and for the chart.

A second value would leave the launcher believing in the first. vLLM's parser (argparse) takes the beginning of a name for the
whole, so `--hos` is --host; which beginnings are clear changes with every release, so all of them are owned.
"""

from __future__ import annotations

from dataclasses import dataclass

#: fields of a profile that become an option of `vllm serve` under the same name
ENGINE_FIELDS = (
    "tensor_parallel_size",
    "pipeline_parallel_size",
    "data_parallel_size",
    "max_model_len",
    "max_num_seqs",
    "max_num_batched_tokens",
    "gpu_memory_utilization",
    "kv_cache_memory_bytes",
    "kv_cache_dtype",
)
#: option -> the field of a profile that sets it
FIELDS = {
    "model": "model",
    "revision": "model.revision",
    "tokenizer": "tokenizer",
    "tokenizer-revision": "tokenizer.revision",
    "served-model-name": "served_name and aliases",
    **dict.fromkeys(("speculative-config", "spec-method", "spec-model", "spec-tokens"), "speculative and drafter"),
    **{name.replace("_", "-"): name for name in ENGINE_FIELDS},
}
#: option -> the variable that sets it: every user of a machine can read a command line, everybody a profile
SECRETS = {"api-key": "VLLM_API_KEY", "hf-token": "HF_TOKEN"}


@dataclass(frozen=True)
class Remedy:
    """What to do instead: on a command line or in a profile, and in the chart's values."""

    here: str
    chart: str


_NO_TLS = Remedy(
    "the launcher asks vLLM over plain HTTP; end TLS in front of it, in a reverse proxy", "ingress or gateway"
)
#: option -> why the launcher has to know
LAUNCHER = {
    "host": Remedy("use --host before the --", "nothing: the API listens on all addresses"),
    "port": Remedy("use --port before the --", "ports.http"),
    "uds": Remedy("use --host and --port before the --", "nothing"),
    "ssl-keyfile": _NO_TLS,
    "ssl-certfile": _NO_TLS,
    "config": Remedy(
        "the launcher does not see what is in that file; put it into `args` of a profile", "profiles.NAME.args"
    ),
}
OWNED = (*SECRETS, *LAUNCHER, *FIELDS)


def owned(name: str) -> str | None:
    """The owned option that `name` (no dashes in front, dashes inside) is or begins; None: it is free."""
    if name in OWNED:
        return name
    # One letter is a short option (-r), and no long one begins so alone.
    return next((flag for flag in OWNED if len(name) > 1 and flag.startswith(name)), None)
