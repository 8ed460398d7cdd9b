"""Does this vLLM have every seam of radiance/hook? Answered from vLLM's sources, without importing them.

    python -m radiance.seams [SITE_PACKAGES]

Exit 0 and one line if so; else 1 and a line for each seam that is gone. The image is not built, and `make compat` fails,
when one is. The table here is the inventory of radiance/hook in a form a program can check; standard library only.
"""

from __future__ import annotations

import ast
import sys
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path

V1, V2 = "vllm/v1/spec_decode/llm_base_proposer.py", "vllm/v1/worker/gpu/spec_decode/speculator.py"
LOGITS, HEADS = (
    "vllm/model_executor/layers/logits_processor.py",
    "vllm/model_executor/layers/vocab_parallel_embedding.py",
)
LOADER = "vllm/model_executor/model_loader/base_loader.py"
WORKER = "vllm/v1/worker/gpu_worker.py"
#: file, class, method, leading parameters; releases that do not have it
METHODS: list[tuple[str, str, str, list[str], tuple[str, ...]]] = [
    (V1, "SpecDecodeBaseProposer", "load_model", ["self", "target_model"], ()),
    (V2, "DraftModelSpeculator", "load_model", ["self", "target_model"], ()),
    (LOADER, "BaseModelLoader", "load_model", ["self", "vllm_config", "model_config"], ()),
    (WORKER, "Worker", "reload_weights", ["self"], ()),
    (WORKER, "Worker", "wake_up", ["self", "tags"], ()),
    (WORKER, "Worker", "_start_weight_update", ["self", "is_draft"], ()),
    (WORKER, "Worker", "update_weights", ["self", "update_info"], ()),
    (WORKER, "Worker", "finish_weight_update", ["self"], ()),
    (WORKER, "Worker", "get_draft_model", ["self"], ()),
    (LOGITS, "LogitsProcessor", "forward", ["self", "lm_head", "hidden_states", "embedding_bias"], ()),
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
ATTRIBUTES: list[tuple[str, str, set[str]]] = [
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


def find_class(root: Path, file: str, name: str) -> ast.ClassDef | None:
    path = root / file
    tree = ast.parse(path.read_text() if path.is_file() else "")
    return next((node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == name), None)


def parameters(cls: ast.ClassDef, method: str) -> list[str] | None:
    """Names of its positional parameters; None if the class itself does not define the method."""
    for node in cls.body:
        if isinstance(node, ast.FunctionDef) and node.name == method:
            return [argument.arg for argument in node.args.args]
    return None


def names(cls: ast.ClassDef) -> set[str]:
    """Fields, methods, and what methods assign on self."""
    found = {node.name for node in cls.body if isinstance(node, ast.FunctionDef)}
    for node in cls.body:
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            found.add(node.target.id)
    for inner in ast.walk(cls):
        if isinstance(inner, ast.Attribute) and isinstance(inner.ctx, ast.Store) and _is_self(inner.value):
            found.add(inner.attr)
    return found


def _is_self(node: ast.expr) -> bool:
    return isinstance(node, ast.Name) and node.id == "self"


def gone(root: Path, version: str = "") -> list[str]:
    """One line for each seam that the vLLM below `root` (the folder that holds vllm/) lacks; `version` "": a current one."""
    lines = []
    for file, name, method, wanted, absent in METHODS:
        if version in absent:
            continue
        cls = find_class(root, file, name)
        found = None if cls is None else parameters(cls, method)
        if found is None:
            lines.append(f"{file}: {name}.{method} is gone")
        elif found[: len(wanted)] != wanted:
            lines.append(f"{file}: {name}.{method} takes {found}, not {wanted}")
    for file, name, attributes in ATTRIBUTES:
        cls = find_class(root, file, name)
        missing = attributes - (set() if cls is None else names(cls))
        if missing:
            lines.append(f"{file}: {name} no longer sets {sorted(missing)}")
    return lines


def main(arguments: list[str]) -> int:
    version = ""
    if arguments:
        root = Path(arguments[0])
    else:
        spec = find_spec("vllm")
        if spec is None or not spec.submodule_search_locations:
            print("no vLLM is installed here; give the folder that holds vllm/ (radiance/seams.py)", file=sys.stderr)
            return 1
        root = Path(spec.submodule_search_locations[0]).parent
        version = metadata.version("vllm")
    lines = gone(root, version)
    for line in lines:
        print(line, file=sys.stderr)
    if not lines:
        print(f"all {len(METHODS) + len(ATTRIBUTES)} seams of radiance/hook are in {root}/vllm")
    return 1 if lines else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
