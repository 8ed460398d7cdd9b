"""Every option, key and variable that a profile can give to vLLM, looked up in the sources of each supported release.

0.33 runs always; the older ones in `make compat`.
"""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from packaging.version import Version

from launcher import plan, profiles
from launcher.owned import OWNED, owned
from launcher.schema import Profile
from launcher.sections import SINCE, Speculative
from tests.compat import sources

VERSIONS = ("0.26.0", "0.29.0", "0.32.0", "0.33.0")
OLDER = [v for v in VERSIONS if v != "0.33.0"]
RELEASES = ["0.33.0", *(pytest.param(v, marks=pytest.mark.compat) for v in [*OLDER, *sources.asked_for()])]
CATALOGUE = [profiles.read(entry.path) for entry in profiles.entries().values()]
OURS = {"selector_top_k", "options"}


def tree(version: str, path: str) -> ast.Module:
    return ast.parse((sources.folder(version) / path).read_text())


@cache
def serve_options(version: str) -> frozenset[str]:
    """Long options of `vllm serve`: those added by name, and one for each field of the front end's dataclasses."""
    root = sources.folder(version)
    (frontend,) = root.glob("vllm/entrypoints/**/cli_args.py")
    found = set()
    for path in (root / "vllm/engine/arg_utils.py", frontend):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and getattr(node.func, "attr", "") == "add_argument":
                found |= {
                    str(a.value)[2:] for a in node.args if isinstance(a, ast.Constant) and str(a.value).startswith("--")
                }
            elif isinstance(node, ast.ClassDef) and node.name.endswith("FrontendArgs"):
                fields = [item.target for item in node.body if isinstance(item, ast.AnnAssign)]
                found |= {field.id.replace("_", "-") for field in fields if isinstance(field, ast.Name)}
    return frozenset(found)


@cache
def speculative_keys(version: str) -> frozenset[str]:
    body = next(
        node.body for node in tree(version, "vllm/config/speculative.py").body
        if isinstance(node, ast.ClassDef) and node.name == "SpeculativeConfig"
    )  # fmt: skip
    return frozenset(
        item.target.id for item in body if isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name)
    )


@cache
def literals(version: str, path: str) -> frozenset[str]:
    return frozenset(
        node.value
        for node in ast.walk(tree(version, path))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    )


def supports(profile: Profile, version: str) -> bool:
    newest = profile.max_vllm is None or Version(version) <= Version(profile.max_vllm)
    return Version(profile.min_vllm) <= Version(version) and newest


@pytest.mark.parametrize("version", RELEASES)
def test_what_is_read_is_really_vllms_options(version: str) -> None:
    """The reader above must not be satisfied with everything."""
    found = serve_options(version)
    assert {"model", "max-model-len", "port", "enable-auto-tool-choice", "speculative-config"} <= found
    assert not {"rerank", "fast-draft", "max-model-length"} & found
    assert len(found) > 150


@pytest.mark.parametrize("version", RELEASES)
@pytest.mark.parametrize("profile", CATALOGUE, ids=lambda p: p.name)
def test_every_option_of_a_built_in_profile_exists(version: str, profile: Profile) -> None:
    if not supports(profile, version):
        return
    planned = plan.build(profile, plan.Options(), {"HOME": "/h"})
    words = {word.partition("=")[0][2:] for word in planned.argv[2:] if word.startswith("--")}
    assert len(words) >= 5
    missing = {
        word
        for word in words
        if word not in serve_options(version) and word.removeprefix("no-") not in serve_options(version)
    }
    assert not missing, f"vLLM {version} has no {sorted(missing)}"


@pytest.mark.parametrize("version", RELEASES)
def test_every_option_that_a_field_can_emit_exists(version: str) -> None:
    assert not set(OWNED) - serve_options(version)


@pytest.mark.parametrize("version", RELEASES)
def test_no_free_option_is_taken_for_an_owned_one(version: str) -> None:
    """Beginnings of owned names are refused; an option of vLLM that is called so must not be."""
    assert not {name for name in serve_options(version) if owned(name)} - set(OWNED)


@pytest.mark.parametrize("version", RELEASES)
def test_every_key_and_method_of_speculative_exists(version: str) -> None:
    keys = set(Speculative.model_fields) - OURS
    newer = {key for key, since in SINCE.items() if Version(version) < Version(since)}
    assert keys - speculative_keys(version) == newer, f"correct SINCE: vLLM {version}"
    methods: Any = Speculative.model_fields["method"].annotation
    assert not set(methods.__args__) - literals(version, "vllm/config/speculative.py")


@pytest.mark.parametrize("version", RELEASES)
def test_variables_of_built_in_profiles_are_vllms(version: str) -> None:
    known = literals(version, "vllm/envs.py")
    for profile in CATALOGUE:
        missing = {name for name in profile.env if name.startswith("VLLM_")} - known
        assert not missing, f"{profile.name}: vLLM {version} reads no {missing}"


def test_the_supported_range_is_the_one_tested() -> None:
    text = (Path(__file__).parents[2] / "pyproject.toml").read_text()
    assert f"vllm>={Version(VERSIONS[0]).base_version.removesuffix('.0')}" in text
    assert Profile.model_fields["min_vllm"].default == VERSIONS[0]
