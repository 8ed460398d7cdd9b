"""The recorded results: complete, consistent, and within what was promised. Needs no GPU."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

RESULTS = Path(__file__).parent / "results"
N, K = 124160, 5120
#: draft rows -> (at most us, at least x stock) of the whole path
PROMISED = {1: (60, 5.5), 8: (62, 5.4), 16: (70, 4.9), 32: (90, 3.8), 64: (125, 2.8), 128: (205, 1.75)}


def loaded(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((RESULTS / name).read_text())
    return found


@pytest.fixture(scope="module")
def results() -> dict[str, Any]:
    return loaded("h200.json")


def us(results: dict[str, Any], m: int, path: str, stage: str) -> float:
    (found,) = [r for r in results["rows"] if (r["m"], r["n"], r["k"], r["path"], r["stage"]) == (m, N, K, path, stage)]
    return float(found["us"])


def test_the_file_says_where_it_comes_from(results: dict[str, Any]) -> None:
    assert {"device", "torch", "triton", "commit", "command", "read_bandwidth", "rows"} <= set(results)
    assert "H200" in results["device"]
    assert "bench head" in results["command"]
    assert 3.5e12 < results["read_bandwidth"] < 4.9e12


def test_every_row_is_whole_and_plausible(results: dict[str, Any]) -> None:
    for row in results["rows"]:
        assert set(row) == {"m", "n", "k", "path", "stage", "us", "stock_us", "read_share"}
        assert row["path"] in {"cuda", "triton", "stock", "fp8", "humming_int4", "humming_int2"}
        assert row["stage"] in {"whole", "uncounted", "device clock", "rotate+coarse", "coarse", "select", "rerank"}
        assert row["us"] > 0
        if row["path"] == "stock":
            assert row["us"] == row["stock_us"]
        if row["read_share"] is not None:
            assert 0 < row["read_share"] <= 1, f"faster than the memory: {row}"


@pytest.mark.parametrize("m", PROMISED)
def test_the_whole_path_is_as_fast_as_promised(results: dict[str, Any], m: int) -> None:
    most, ratio = PROMISED[m]
    whole = us(results, m, "cuda", "whole")
    assert whole <= most
    assert us(results, m, "stock", "whole") / whole >= ratio


def test_the_coarse_pass_reads_at_85_percent_of_the_bandwidth(results: dict[str, Any]) -> None:
    shares = {r["m"]: r["read_share"] for r in results["rows"] if (r["n"], r["k"], r["stage"]) == (N, K, "coarse")}
    assert min(shares[m] for m in (1, 2, 4, 8)) >= 0.85


def test_counting_costs_less_than_a_microsecond_and_its_clock_is_right(results: dict[str, Any]) -> None:
    """At 128 rows two runs of the same differ by more than the cost."""
    for m in (1, 2, 4, 8, 16, 32, 64):
        whole = us(results, m, "cuda", "whole")
        assert whole - us(results, m, "cuda", "uncounted") < 1.05  # both are rounded to 0.1
        assert abs(us(results, m, "cuda", "device clock") / whole - 1) < 0.1


def test_rivals_were_timed_in_the_same_run(results: dict[str, Any]) -> None:
    for m in (1, 16, 64):
        for rival in ("fp8", "humming_int4", "humming_int2"):
            assert us(results, m, rival, "whole") > 1.5 * us(results, m, "cuda", "whole")


def test_quantising_at_full_size_keeps_its_bounds() -> None:
    """At most 1.5 s and 256 MiB beyond the packed copy at 248320 x 5120, once cuBLAS and cuSOLVER are loaded."""
    found = loaded("h200-quantise.json")
    cost = found["cost"][0]
    assert (cost["n"], cost["k"]) == (248320, 5120)
    assert cost["second_seconds"] <= 1.5
    assert cost["second_peak_mib_beyond_packed"] <= 256
    assert found["gaussian"]["share_in_top"]["32"] >= 0.95


def test_real_vllm_says_the_same_with_every_draft_head() -> None:
    heads = {run["head"]: run for run in loaded("h200-serve.json")["heads"]}
    for sequences in ("sequences_1", "sequences_16"):
        assert len({run[sequences]["output"] for run in heads.values()}) == 1
        speed = {head: run[sequences]["tokens_per_second"] for head, run in heads.items()}
        assert speed["fast"] > speed["fp8"] > speed["stock"]
        rate = {
            h: r[sequences]["accepted_tokens"] / r[sequences]["draft_tokens"] for h, r in heads.items() if h != "none"
        }
        assert abs(rate["fast"] - rate["stock"]) < 0.015
        assert rate["coarse"] < rate["stock"] - 0.05
