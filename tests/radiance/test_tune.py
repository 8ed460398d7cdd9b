from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from radiance import recall, tune
from tests.radiance.test_accuracy import texts, tiny  # noqa: F401  (fixtures)


def counted(*agreed: int) -> recall.Recall:
    reranks = [8, 16, 32, 64][: len(agreed)]
    missed = [1000 - one for one in agreed]
    return recall.Recall(1000, reranks, list(agreed), list(agreed), [0] * len(agreed), missed, 0)


def test_the_smallest_r_that_is_enough() -> None:
    assert tune.smallest(counted(900, 994, 995, 1000), 0.995) == 32
    assert tune.smallest(counted(900, 994, 995, 1000), 0.9) == 8
    assert tune.smallest(counted(900, 994), 0.995) is None


def run(model: Path, folder: Path, *more: str) -> int:
    return tune.main(["--rerank", "--model", str(model), "--text", str(folder), "--positions", "200", *more])


def test_it_finds_what_its_own_counts_say(tiny: Path, texts: Path, tmp_path: Path, capsys) -> None:  # type: ignore[no-untyped-def]  # noqa: F811
    out = tmp_path / "report.json"
    assert run(tiny, texts, "--json", str(out), "--agreement", "0.9", "--reranks", "1,2,4,8,16,64") == 0
    report = json.loads(out.read_text())
    row = report["schemes"][0]
    shares = dict(zip(row["reranks"], [agreed / 200 for agreed in row["agreed"]], strict=True))
    found = report["rerank"]
    assert shares[found] >= 0.9
    assert all(share < 0.9 for r, share in shares.items() if r < found)
    assert shares[1] < 0.9  # else any answer would do
    printed = capsys.readouterr().out
    assert f"\nrerank: {found}\n" in printed
    assert printed.count("<-") == 1


def test_none_is_enough_is_1(tiny: Path, texts: Path, capsys) -> None:  # type: ignore[no-untyped-def]  # noqa: F811
    assert run(tiny, texts, "--reranks", "1", "--agreement", "1") == 1
    assert "no r of those tried agrees on 100.00%" in capsys.readouterr().err


@pytest.mark.parametrize("layout", ["quarter", "fragment"])
def test_both_layouts(layout: str, tiny: Path, texts: Path, capsys) -> None:  # type: ignore[no-untyped-def]  # noqa: F811
    assert run(tiny, texts, "--layout", layout, "--reranks", "64,256") == 0
    assert f"layout {layout}" in capsys.readouterr().out


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_launches_need_a_gpu(capsys) -> None:  # type: ignore[no-untyped-def]
    assert tune.main(["--shape", "1000x512"]) == tune.NO_GPU
    assert "needs a GPU" in capsys.readouterr().err


def test_it_must_be_told_what_to_tune(tiny: Path) -> None:  # noqa: F811
    with pytest.raises(SystemExit) as error:
        tune.main(["--model", str(tiny)])
    assert error.value.code == 2
