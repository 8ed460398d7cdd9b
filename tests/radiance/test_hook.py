"""The import machinery of the hook, with modules made for the purpose; what it does to vLLM is in tests/e2e and tests/compat."""

from __future__ import annotations

import importlib.util
import logging
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

from radiance.hook import imports, load, module, weights


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An importable package `subject` with a module `late`; both and our finder are forgotten afterwards."""
    (tmp_path / "subject").mkdir()
    (tmp_path / "subject" / "__init__.py").write_text("")
    (tmp_path / "subject" / "late.py").write_text(
        "class Thing:\n    def load_model(self):\n        return 'original'\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    before = list(sys.meta_path)
    yield tmp_path
    sys.meta_path[:] = before
    for name in [n for n in sys.modules if n.split(".")[0] == "subject"]:
        del sys.modules[name]


def test_a_patch_runs_once_after_the_module(package: Path) -> None:
    seen: list[str] = []
    sys.meta_path.insert(0, imports.AfterImport({"subject.late": lambda m: seen.append(m.Thing().load_model())}))
    import subject.late  # type: ignore[import-not-found]  # noqa: F401

    del sys.modules["subject.late"]

    assert seen == ["original"]


def test_looking_for_a_module_is_not_importing_it(package: Path) -> None:
    seen: list[str] = []
    sys.meta_path.insert(0, imports.AfterImport({"subject.late": lambda m: seen.append(m.__name__)}))
    assert importlib.util.find_spec("subject.late") is not None
    assert seen == []
    import subject.late  # noqa: F401

    assert seen == ["subject.late"]


def test_drafters_and_engines_that_are_refused_are_named() -> None:
    def owner(model: object, rival: str | None = None, **config: object) -> SimpleNamespace:
        settings = {"weight_transfer_config": None, **config}
        speculative = SimpleNamespace(draft_lm_head_quantization=rival)
        return SimpleNamespace(model=model, vllm_config=SimpleNamespace(**settings), speculative_config=speculative)

    assert load.refusal(owner(SimpleNamespace())) == ""
    assert load.refusal(owner(SimpleNamespace(masked_embedding=None))) == ""
    assert load.refusal(owner(SimpleNamespace(compute_draft_logits=print))) == ""
    assert "masked embedding" in load.refusal(owner(SimpleNamespace(masked_embedding=object())))
    assert "fp8" in load.refusal(owner(SimpleNamespace(), rival="fp8"))


def test_weight_transfer_is_refused_only_where_its_sessions_are_not_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    owner = SimpleNamespace(model=SimpleNamespace(), speculative_config=None,
                            vllm_config=SimpleNamespace(weight_transfer_config=object()))  # fmt: skip

    class Old:
        def reload_weights(self) -> None: ...
        def update_weights(self) -> None: ...

    class New(Old):
        def reload_weights(self) -> None: ...
        def _start_weight_update(self) -> None: ...
        def update_weights(self) -> None: ...
        def finish_weight_update(self) -> None: ...

    for worker, refused in ((Old, True), (New, False)):
        module = SimpleNamespace(Worker=worker)
        monkeypatch.setitem(sys.modules, "vllm.v1.worker.gpu_worker", module)
        weights.wrap(module)
        assert ("weight transfer" in load.refusal(owner)) is refused


@pytest.mark.parametrize(
    ("model", "config", "suffices"),
    [
        ({"get_top_tokens": print}, {}, True),
        ({"get_top_tokens": print}, {"draft_sample_method": "probabilistic"}, False),
        ({}, {}, False),
        ({"get_top_tokens": print, "compute_draft_logits": print}, {}, False),
        ({"get_top_tokens": print, "masked_embedding": None}, {}, False),
        ({"get_top_tokens": print, "logits_processor": SimpleNamespace(scale=0.0)}, {}, False),
    ],
)
def test_token_ids_suffice_only_where_nothing_else_is_asked(
    model: dict[str, object], config: dict[str, object], suffices: bool
) -> None:
    drafter = SimpleNamespace(modules=list, **model)
    owner = SimpleNamespace(model=drafter, speculative_config=SimpleNamespace(**config))
    assert load.token_ids_suffice(owner) == suffices


def test_a_patch_that_fails_does_not_fail_the_import(package: Path, caplog: pytest.LogCaptureFixture) -> None:
    def fail(_: ModuleType) -> None:
        raise RuntimeError("no such class")

    sys.meta_path.insert(0, imports.AfterImport({"subject.late": fail}))
    with caplog.at_level(logging.ERROR, "vllm.radiance"):
        import subject.late

    assert subject.late.Thing().load_model() == "original"
    assert "could not patch subject.late" in caplog.text


def test_a_module_that_does_not_exist_is_still_an_import_error(package: Path) -> None:
    sys.meta_path.insert(0, imports.AfterImport({"subject.none": lambda _: None}))
    with pytest.raises(ModuleNotFoundError):
        import subject.none  # type: ignore[import-not-found]  # noqa: F401


def test_methods_are_wrapped_once_and_a_missing_one_is_named(caplog: pytest.LogCaptureFixture) -> None:
    class Proposer:
        def load_model(self) -> int:
            return 1

    def add_one(original):  # type: ignore[no-untyped-def]
        return lambda self: original(self) + 1

    assert imports.wrap(Proposer, "load_model", add_one)
    assert imports.wrap(Proposer, "load_model", add_one)
    assert Proposer().load_model() == 2
    with caplog.at_level(logging.WARNING, "vllm.radiance"):
        assert not imports.wrap(Proposer, "get_top_tokens", add_one)
    assert "Proposer.get_top_tokens is not there in this vLLM" in caplog.text


@pytest.mark.parametrize(("mode", "hooks"), [("0", 0), ("", 0), ("1", 1), ("shadow", 1), ("nonsense", 1)])
def test_register_leaves_one_hook_or_none(mode: str, hooks: int) -> None:
    """Twice, as vLLM may call it; `nonsense` leaves the hook that reports the bad setting."""
    code = (
        "import sys, radiance; radiance.register(); radiance.register(); "
        "print(sum(type(f).__name__ == 'AfterImport' for f in sys.meta_path))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={"RADIANCE_FAST_DRAFT": mode, "PATH": "/usr/bin"},
        capture_output=True,
        text=True,
    )
    assert done.stdout.strip() == str(hooks), done.stderr
    assert ("nonsense" in done.stderr) == (mode == "nonsense")


def test_a_draft_vocabulary_always_has_the_special_tokens(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    from tests.e2e import checkpoints

    checkpoints._tokenizer(tmp_path)
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    config = SimpleNamespace(
        hf_text_config=SimpleNamespace(eos_token_id=[7]), try_get_generation_config=lambda: {"eos_token_id": 9},
        tokenizer=str(tmp_path), tokenizer_revision=None, trust_remote_code=False,
    )  # fmt: skip
    assert module._special_ids(config) == [
        0,
        1,
        2,
        7,
        9,
    ]  # <|endoftext|>, <|im_start|>, <|im_end|> and what the configs say
    config.tokenizer = str(tmp_path / "none")
    with caplog.at_level(logging.WARNING, "vllm.radiance"):
        assert sorted(module._special_ids(config)) == [7, 9]
    assert "special tokens are not known" in caplog.text


def test_drafters_whose_step_would_be_lost_keep_their_rows() -> None:
    owner = SimpleNamespace(
        model=SimpleNamespace(get_top_tokens=print),
        speculative_config=SimpleNamespace(),
        _sample_draft_tokens_for_step=print,
    )
    assert not load.token_ids_suffice(owner)
