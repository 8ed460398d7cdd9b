"""`radiance accuracy`: on a tiny random model and on heads made for one question each; at the end, on the real one."""

from __future__ import annotations

import json
import os
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from launcher import smollm2
from radiance import accuracy, hidden, recall, schemes, tune
from radiance.source import Source

ROOT = Path(__file__).parent.parent.parent
K, N = 64, 320
TEMPLATE = "{% for turn in messages %}[{{ turn['role'] }}]{{ turn['content'] }}{% endfor %}"


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random Llama that reads bytes; its vocabulary has some room beside them."""
    folder = tmp_path_factory.mktemp("tiny")
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=N, hidden_size=K, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=1024, tie_word_embeddings=False, initializer_range=0.2,
    )  # fmt: skip
    LlamaForCausalLM(config).save_pretrained(folder)
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={letter: i for i, letter in enumerate(letters)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer)
    fast.chat_template = TEMPLATE
    fast.save_pretrained(folder)
    return folder


@pytest.fixture
def texts(tmp_path: Path) -> Path:
    folder = tmp_path / "texts"
    folder.mkdir()
    for split, seed in (("test", 1), ("calibration", 2)):
        letters = np.random.default_rng(seed).integers(97, 123, 3000).astype(np.uint8).tobytes().decode()
        (folder / f"prose-{split}.txt").write_text(letters)
        (folder / f"chat-{split}.txt").write_text(f"<user>\n{letters[:80]}\n<assistant>\n{letters[80:300]}\n" * 3)
    return folder


def run(tiny: Path, texts: Path, *more: str) -> int:
    return accuracy.main(
        ["--model", str(tiny), "--text", str(texts), "--positions", "300", "--rerank", "1,8,64", *more]
    )


# -- hidden states -----------------------------------------------------------------------------------------------------


def test_inputs_are_what_enters_the_head(tiny: Path) -> None:
    model = hidden.load(tiny, "cpu")
    ids = list(range(40))
    expected = model.body.model(input_ids=torch.tensor([ids])).last_hidden_state[0]
    assert torch.allclose(hidden.inputs(model, ids), expected, atol=1e-5)
    assert not model.head._forward_pre_hooks


def test_no_full_row_is_made(tiny: Path) -> None:
    model = hidden.load(tiny, "cpu")
    rows = []
    model.head.register_forward_hook(lambda module, args, out: rows.append(out.shape))
    hidden.inputs(model, list(range(40)))
    assert rows == [(1, 1, N)]


def test_every_kind_gives_its_share_from_all_over_its_text(tiny: Path, texts: Path) -> None:
    model = hidden.load(tiny, "cpu")
    states = hidden.collect(model, texts, "test", 300)
    first = hidden.windows(model.tokenizer, texts / "chat-test.txt", "chat")[0]
    assert torch.equal(states.x[0], hidden.inputs(model, first)[1].bfloat16())  # position 0 has seen nothing
    assert states.kinds == {"chat": 150, "prose": 150}
    assert states.x.shape == (300, K)
    assert states.x.dtype is torch.bfloat16
    parts = [[i] * 101 for i in range(10)]
    assert [part[0] for part in hidden._spread(parts, 250)] == [0, 3, 6]
    assert hidden._spread(parts, 10**6) == parts


def test_chat_goes_through_the_template(tiny: Path, tmp_path: Path) -> None:
    path = tmp_path / "chat-test.txt"
    path.write_text("<user>\nA\nB\n<assistant>\nC\n<user>\nD\n<assistant>\nE\n")
    tokenizer = hidden.load(tiny, "cpu").tokenizer
    found = [tokenizer.decode(ids) for ids in hidden.windows(tokenizer, path, "chat")]
    assert found == ["[user]A\nB[assistant]C", "[user]D[assistant]E"]


def test_the_fixture_is_small_and_calibration_has_nothing_of_the_test() -> None:
    files = sorted(accuracy.FIXTURE.glob("*.txt"))
    assert [path.stem for path in files] == [
        f"{kind}-{split}" for kind in ("chat", "code", "prose") for split in ("calibration", "test")
    ]
    assert sum(path.stat().st_size for path in files) < 1 << 20
    lines = {
        split: {
            line for path in files if split in path.stem for line in path.read_text().splitlines() if len(line) > 60
        }
        for split in ("test", "calibration")
    }
    assert not lines["test"] & lines["calibration"]


# -- the command -------------------------------------------------------------------------------------------------------


def test_report_and_table(tiny: Path, texts: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "deep" / "report.json"
    assert run(tiny, texts, "--json", str(out), "--note", "made for a test") == 0
    report = json.loads(out.read_text())
    assert [row["scheme"] for row in report["schemes"]] == list(schemes.SCHEMES)
    assert (report["model"], report["positions"], report["calibration_positions"]) == (tiny.name, 300, 300)
    assert report["head"] == {"n": N, "k": K, "tokens": N, "dtype": "bfloat16"}
    assert str(tmp_path) not in out.read_text()
    assert str(tiny.parent) not in out.read_text()
    for row in report["schemes"]:
        assert row["positions"] == 300
        for i in range(3):
            assert row["agreed"][i] + row["tied"][i] + row["missed"][i] == 300
        assert row["inside"] == sorted(row["inside"])
        assert [sum(both) for both in zip(*row["inside_by_kind"].values(), strict=True)] == row["inside"]
    printed = capsys.readouterr().out
    assert accuracy.table(report) in printed
    assert len(accuracy.table(report).splitlines()) == 2 + len(schemes.SCHEMES)


def test_every_position_counts_once(tiny: Path, texts: Path, tmp_path: Path) -> None:
    assert run(tiny, texts, "--schemes", "quarter", "--json", str(tmp_path / "report.json")) == 0
    row = json.loads((tmp_path / "report.json").read_text())["schemes"][0]
    model = hidden.load(tiny, "cpu")
    source, x = Source(model.weight.bfloat16()), hidden.collect(model, texts, "test", 300).x
    built = schemes.build("quarter", source, N)
    found = recall.measure(built, source, x, recall.truth(source, x, N), N, [1, 8, 64])
    assert {name: row[name] for name in asdict(found)} == asdict(found)


def test_saved_states_calibrate_as_the_texts_do(tiny: Path, texts: Path, tmp_path: Path) -> None:
    kept = tmp_path / "states.safetensors"
    only = ("--schemes", "quarter,calibrated", "--json", str(tmp_path / "report.json"))

    def rows(*more: str) -> list[dict[str, object]]:
        assert run(tiny, texts, *only, *more) == 0
        found = json.loads((tmp_path / "report.json").read_text())["schemes"]
        return [{key: value for key, value in row.items() if key != "quantise_seconds"} for row in found]

    first = rows("--save-hidden", str(kept))
    again = rows("--calibration", str(kept))
    assert first == again
    np.save(tmp_path / "states.npy", hidden.read(kept, K).float().numpy())
    assert rows("--calibration", str(tmp_path / "states.npy")) == again
    assert first[0]["logit_error"] != first[1]["logit_error"]


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (np.zeros((5, 63), np.float32), r"\(5, 63\); .*\[positions, 64\]"),
        (np.zeros((5, 64), np.int32), "int32"),
        (np.full((5, 64), np.nan, np.float32), "NaN"),
        (np.array([{"a": 1}], dtype=object), "cannot be read"),
        (b"no array at all", "cannot be read"),
    ],
)
def test_bad_calibration_files_are_named(content: object, says: str, tmp_path: Path) -> None:
    path = tmp_path / "states.npy"
    if isinstance(content, bytes):
        path.write_bytes(content)
    else:
        np.save(path, content, allow_pickle=True)
    with pytest.raises(hidden.InputError, match=says) as error:
        hidden.read(path, 64)
    assert "states.npy" in str(error.value)


class Trap:
    """Touches a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, ...]:
        return Path.touch, (self.path,)


def test_a_calibration_file_runs_no_code(tmp_path: Path) -> None:
    np.save(tmp_path / "states.npy", np.array([Trap(tmp_path / "touched")], dtype=object), allow_pickle=True)
    with pytest.raises(hidden.InputError, match="cannot be read"):
        hidden.read(tmp_path / "states.npy", 64)
    assert not (tmp_path / "touched").exists()


def test_what_cannot_be_used_is_66_and_one_line(tiny: Path, texts: Path, tmp_path: Path,
                                                capsys: pytest.CaptureFixture[str]) -> None:  # fmt: skip
    assert accuracy.main(["--model", str(tmp_path)]) == 66
    assert "has no config.json" in capsys.readouterr().err
    assert run(tiny, tmp_path) == 66
    assert "has no file KIND-test.txt" in capsys.readouterr().err
    assert run(tiny, texts, "--calibration", str(tmp_path / "none.npy")) == 66
    assert "none.npy" in capsys.readouterr().err
    assert run(tiny, texts, "--rerank", "1,321") == 66
    assert "r = 321 of a head with 320 tokens" in capsys.readouterr().err


@pytest.mark.parametrize("more", [("--schemes", "best"), ("--rerank", "0"), ("--positions", "-1"), ("--bogus",)])
def test_bad_options_are_2(more: tuple[str, ...], tiny: Path, texts: Path) -> None:
    with pytest.raises(SystemExit) as error:
        run(tiny, texts, *more)
    assert error.value.code == 2


@pytest.mark.parametrize("name", ["smollm2", "gemma3-270m"])
def test_the_document_says_what_the_results_say(name: str) -> None:
    report = json.loads((ROOT / "tests" / "bench" / "results" / f"accuracy-{name}.json").read_text())
    assert "dequantised" in report["note"]
    document = (ROOT / "docs" / "accuracy.md").read_text()
    assert accuracy.table(report) in document
    assert accuracy.kinds_table(report) in document


def test_the_document_says_what_tune_found() -> None:
    report = json.loads((ROOT / "tests" / "bench" / "results" / "accuracy-tune-smollm2.json").read_text())
    assert tune.table(report).split("\n\n")[1] in (ROOT / "docs" / "accuracy.md").read_text()


@pytest.mark.e2e
def test_smollm2_ranks_well() -> None:
    """The claim of the README, on a part of the positions that `make accuracy` takes: a worse quantiser fails here."""
    folder = smollm2.folder(os.environ)
    smollm2.prepare(folder, print)
    args = accuracy.parser().parse_args(
        ["--model", str(folder), "--positions", "1024", "--schemes", "minmax,quarter,fragment"]
    )
    baseline, *ours = accuracy.run(args, "")["schemes"]
    assert baseline["inside"][2] < 0.85 * 1024  # the positions are hard enough to tell
    for row in ours:
        top32, top128 = row["inside"][2] / 1024, row["inside"][4] / 1024
        assert (row["reranks"][2], row["reranks"][4]) == (32, 128)
        assert top32 >= 0.985
        assert top128 >= 0.995
        assert row["agreed"][2] / 1024 >= 0.985
        assert row["bits_per_weight"] <= 2.25
