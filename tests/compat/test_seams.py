"""Every seam of radiance/hook, looked up in the sources of real vLLM releases: a new vLLM fails here, not at a user's.

0.33 runs always, because its V2 runner needs Triton and so never runs on a CPU; the older ones in `make compat`.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from radiance import hook, seams
from radiance.hook import load
from radiance.seams import ATTRIBUTES, METHODS, V1, V2
from tests.compat import sources

OLDER = ["0.26.0", "0.29.0", "0.32.0"]
RELEASES = ["0.33.0", *(pytest.param(v, marks=pytest.mark.compat) for v in [*OLDER, *sources.asked_for()])]


def find_class(version: str, file: str, name: str) -> ast.ClassDef:
    found = seams.find_class(sources.folder(version), file, name)
    assert found, f"vLLM {version}: {file} has no class {name}"
    return found


@pytest.mark.parametrize("version", RELEASES)
@pytest.mark.parametrize(
    ("file", "cls", "method", "parameters", "absent"), METHODS, ids=lambda v: v if isinstance(v, str) else ""
)
def test_methods(
    version: str, file: str, cls: str, method: str, parameters: list[str], absent: tuple[str, ...]
) -> None:
    found = seams.parameters(find_class(version, file, cls), method)
    if version in absent:
        assert found is None, f"{cls}.{method} has come to vLLM {version}: correct radiance/seams.py and radiance/hook"
        return
    assert found, f"vLLM {version}: {cls}.{method} is gone"
    assert found[: len(parameters)] == parameters
    assert method in (hook.__doc__ or ""), f"the inventory of radiance/hook does not name {method}"


@pytest.mark.parametrize("version", RELEASES)
@pytest.mark.parametrize(("file", "cls", "attributes"), ATTRIBUTES, ids=lambda v: v if isinstance(v, str) else "")
def test_attributes(version: str, file: str, cls: str, attributes: set[str]) -> None:
    missing = attributes - seams.names(find_class(version, file, cls))
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


def test_the_command_says_which_seam_is_gone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What the image's build runs: 0 on this release, 1 and the seam's name when somebody renames one."""
    assert seams.main([str(sources.folder("0.33.0"))]) == 0
    for file in {*(row[0] for row in METHODS), *(row[0] for row in ATTRIBUTES)}:
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        text = (sources.folder("0.33.0") / file).read_text()
        (tmp_path / file).write_text(
            text.replace("def get_top_tokens(", "def best_tokens(").replace("self.tp_size", "self.n")
        )
    capsys.readouterr()
    assert seams.main([str(tmp_path)]) == 1
    lines = capsys.readouterr().err.splitlines()
    assert [line.partition(": ")[2] for line in lines] == [
        "LogitsProcessor.get_top_tokens is gone",
        "VocabParallelEmbedding no longer sets ['tp_size']",
    ]


#: how drafters name the head that they give to a LogitsProcessor; DSpark's Markov head is not one of ours
HEADS = {"self.lm_head", "lm_head", "head", "mtp_layer.shared_head.head", "self.markov_w2"}
#: drafters that read a head's weight themselves: ours keeps the weight, so they go on with the stock head
RAW = {"ernie_mtp", "exaone4_5_mtp", "exaone_moe_mtp", "gemma4_mtp", "inkling", "dspark", "mtp"}


@pytest.mark.parametrize("version", RELEASES)
def test_every_drafter_asks_a_logits_processor_with_a_head_that_we_replace(version: str) -> None:
    """A new way to reach the head would pass us by without a word."""
    words = ("mtp", "eagle", "dflash", "dspark", "lilicorr", "xpress")
    root = sources.folder(version) / "vllm"
    files = [p for part in ("model_executor/models", "models") for p in (root / part).rglob("*.py")]
    asked, raw = set(), set()
    for path in [p for p in files if any(word in p.stem for word in words)]:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and node.args:
                called = ast.unparse(node.func)
                if re.search(r"logits_processor(\.get_top\w+)?$", called):
                    asked.add(ast.unparse(node.args[0]))
            if isinstance(node, ast.Attribute) and re.search(
                r"(lm_head|shared_head\.head)\.weight$", ast.unparse(node)
            ):
                raw.add(path.stem)
    assert {"self.lm_head", "mtp_layer.shared_head.head"} <= asked
    assert asked <= HEADS, f"vLLM {version}: drafters reach their head as {sorted(asked - HEADS)}"
    assert raw <= RAW, f"vLLM {version}: {sorted(raw - RAW)} read the weight of their head"
