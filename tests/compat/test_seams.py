"""Every seam of radiance/hook, looked up in the sources of real vLLM releases: a new vLLM fails here, not at a user's.

0.33 runs always, because its V2 runner needs Triton and so never runs on a CPU; the older ones in `make compat`.
"""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from radiance import hook
from radiance.hook import load
from tests.compat import sources

OLDER = ["0.26.0", "0.29.0", "0.32.0"]
RELEASES = ["0.33.0", *(pytest.param(v, marks=pytest.mark.compat) for v in [*OLDER, *sources.asked_for()])]
V1, V2 = "vllm/v1/spec_decode/llm_base_proposer.py", "vllm/v1/worker/gpu/spec_decode/speculator.py"
LOGITS, HEADS = (
    "vllm/model_executor/layers/logits_processor.py",
    "vllm/model_executor/layers/vocab_parallel_embedding.py",
)
LOADER = "vllm/model_executor/model_loader/base_loader.py"
#: file, class, method, leading parameters; releases that do not have it
METHODS = [
    (V1, "SpecDecodeBaseProposer", "load_model", ["self", "target_model"], ()),
    (V2, "DraftModelSpeculator", "load_model", ["self", "target_model"], ()),
    (LOADER, "BaseModelLoader", "load_model", ["self", "vllm_config", "model_config"], ()),
    (LOGITS, "LogitsProcessor", "_apply_head", ["self", "lm_head", "hidden_states", "embedding_bias"], ()),
    (LOGITS, "LogitsProcessor", "get_top_tokens", ["self", "lm_head", "hidden_states", "embedding_bias"], ()),
    (
        LOGITS,
        "LogitsProcessor",
        "get_top_k_tokens",
        ["self", "lm_head", "hidden_states", "k", "embedding_bias"],
        ("0.26.0",),
    ),
]
#: file, class, attributes that its methods set or define
ATTRIBUTES = [
    (V1, "SpecDecodeBaseProposer", {"model", "use_local_argmax_reduction", "speculative_config", "vllm_config"}),
    (V2, "DraftModelSpeculator", {"model", "use_local_argmax_reduction", "speculative_config", "vllm_config"}),
    (LOGITS, "LogitsProcessor", {"scale", "soft_cap", "head_dtype"}),
    (
        HEADS,
        "VocabParallelEmbedding",
        {"shard_indices", "tp_size", "embedding_dim", "params_dtype", "org_vocab_size", "quant_method"},
    ),
    (HEADS, "VocabParallelEmbeddingShardIndices", {"num_org_elements", "org_vocab_start_index", "org_vocab_end_index"}),
]


def find_class(version: str, file: str, name: str) -> ast.ClassDef:
    tree = ast.parse((sources.folder(version) / file).read_text())
    found = [node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == name]
    assert found, f"vLLM {version}: {file} has no class {name}"
    return found[0]


def names_of(cls: ast.ClassDef) -> set[str]:
    """Fields, methods, and what methods assign on self."""
    names = {node.name for node in cls.body if isinstance(node, ast.FunctionDef)}
    names |= {
        node.target.id for node in cls.body if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)
    }
    for node in ast.walk(cls):
        if (
            isinstance(node, ast.Attribute)
            and isinstance(node.ctx, ast.Store)
            and getattr(node.value, "id", "") == "self"
        ):
            names.add(node.attr)
    return names


@pytest.mark.parametrize("version", RELEASES)
@pytest.mark.parametrize(
    ("file", "cls", "method", "parameters", "absent"), METHODS, ids=lambda v: v if isinstance(v, str) else ""
)
def test_methods(
    version: str, file: str, cls: str, method: str, parameters: list[str], absent: tuple[str, ...]
) -> None:
    found = [n for n in find_class(version, file, cls).body if isinstance(n, ast.FunctionDef) and n.name == method]
    if version in absent:
        assert not found, f"{cls}.{method} has come to vLLM {version}: correct the table here and in radiance/hook"
        return
    assert found, f"vLLM {version}: {cls}.{method} is gone"
    assert [a.arg for a in found[0].args.args][: len(parameters)] == parameters
    assert method in (hook.__doc__ or ""), f"the inventory of radiance/hook does not name {method}"


@pytest.mark.parametrize("version", RELEASES)
@pytest.mark.parametrize(("file", "cls", "attributes"), ATTRIBUTES, ids=lambda v: v if isinstance(v, str) else "")
def test_attributes(version: str, file: str, cls: str, attributes: set[str]) -> None:
    missing = attributes - names_of(find_class(version, file, cls))
    # A base class may set it; the quant_method and dimensions of a head never come from one.
    assert not missing, f"vLLM {version}: {cls} no longer sets {sorted(missing)}"


@pytest.mark.parametrize("version", RELEASES)
def test_every_override_of_load_model_calls_the_one_we_wrap(version: str) -> None:
    """A subclass that loads its drafter without super() would pass us by. Known: proposers without an LM head of their own."""
    known = {"MedusaProposer", "ExtractHiddenStatesProposer", "ExtractHiddenStatesSpeculator"}
    without_drafter = ("ngram", "suffix", "custom_class")
    root = sources.folder(version)
    seen = 0
    for path in [
        *(root / "vllm/v1/spec_decode").glob("*.py"),
        *(root / "vllm/v1/worker/gpu/spec_decode").rglob("*.py"),
    ]:
        if str(path.relative_to(root)) in (V1, V2) or path.stem.startswith(without_drafter):
            continue
        for cls in [n for n in ast.walk(ast.parse(path.read_text())) if isinstance(n, ast.ClassDef)]:
            for method in cls.body:
                if isinstance(method, ast.FunctionDef) and method.name == "load_model":
                    seen += 1
                    assert cls.name in known or "super().load_model" in ast.unparse(method), (
                        f"{version}: {path.name} {cls.name}"
                    )
    assert seen


@pytest.mark.parametrize("version", RELEASES)
def test_no_drafter_keeps_its_lm_head_under_a_name_we_do_not_know(version: str) -> None:
    """Heads are found by attribute name. A class with a ParallelLMHead elsewhere must be looked at by a person first."""
    known = {*load.HEAD_ATTRIBUTES, "markov_w2", "shared_head"}
    drafters = ("mtp", "eagle", "dflash", "dspark", "lilicorr", "xpress", "medusa")
    strange = []
    for path in Path(sources.folder(version) / "vllm/model_executor/models").glob("*.py"):
        if not any(word in path.stem for word in drafters):
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call):
                made = ast.unparse(node.value.func)
                target = node.targets[0]
                if made.endswith("ParallelLMHead") and isinstance(target, ast.Attribute) and target.attr not in known:
                    strange.append(f"{path.name}: {ast.unparse(target)}")
    assert not strange, f"vLLM {version}: {strange}"
