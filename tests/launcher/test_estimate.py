"""The arithmetic of `plan`: what it takes from measurements and from the plugin is compared with them, not repeated."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from serving import ROOT, profile_text

from launcher import estimate, profiles
from launcher.cli import main
from launcher.estimate import GIB
from launcher.profiles import Profile
from radiance import tuning
from radiance.pack import Format, default_group

ROWS = json.loads((ROOT / "tests/bench/results/h200.json").read_text())["rows"]


def measured(n: int, k: int, m: int, path: str = "cuda") -> float:
    (row,) = [r for r in ROWS if (r["n"], r["k"], r["m"], r["path"], r["stage"]) == (n, k, m, path, "whole")]
    return float(row["us"])


def test_the_table_is_what_was_measured() -> None:
    for (n, k), (stock, ratios) in estimate.MEASURED.items():
        assert stock == measured(n, k, 1, "stock")
        for m, ratio in ratios.items():
            assert ratio == pytest.approx(measured(n, k, m) / measured(n, k, m, "stock"), abs=0.0006), (n, k, m)


@pytest.mark.parametrize(
    ("n", "k"), [(248320, 5120), (124160, 5120), (49152, 576), (262144, 640), (32000, 4096), (37984, 2048)]
)
def test_sizes_and_crossover_are_the_plugins(n: int, k: int) -> None:
    assert estimate.packed_bytes(n, k) == Format("fragment", n, k, default_group(k)).bytes
    hopper = tuning.Device("NVIDIA H200", (9, 0), 132, 227 * 1024)
    assert estimate.crossover(n, k) == tuning.crossover_rows(n, k, hopper)


def test_the_packed_head_is_what_a_real_serve_reported() -> None:
    heads = json.loads((ROOT / "tests/bench/results/h200-serve-profile.json").read_text())["heads"]
    (fast,) = [head for head in heads if head["head"] == "fast"]
    reported = fast["draft_head"][0]
    assert estimate.packed_bytes(reported["n"], reported["k"]) == reported["packed_bytes"]


def test_the_bound_holds_for_the_pair_that_was_measured(tmp_path: Path) -> None:
    """tests/bench/pairs.py: two layers of 0.32 GiB and a drafter of one, so that heads dominate. What was measured must not be
    above what is promised as a bound."""
    results = json.loads((ROOT / "tests/bench/results/h200-serve-profile.json").read_text())
    speed = {head["head"]: head["sequences_1"]["tokens_per_second"] for head in results["heads"]}
    profile = made(
        tmp_path,
        speculative={"method": "eagle", "num_speculative_tokens": 3},
        architecture={"vocab_size": 248320, "hidden_size": 5120, "weight_gib": 2.37 + 2 * 0.32, "drafter_gib": 0.42},
    )
    gain = estimate.gain_at(profile, 1)
    assert gain is not None
    assert speed["fast"] / speed["stock"] - 1 < gain.speedup < 2


def made(folder: Path, **change: Any) -> Profile:
    path = folder / "tiny.yaml"
    path.write_text(profile_text(folder, **change))
    return profiles.read(path)


HEAD = {"vocab_size": 248320, "hidden_size": 5120, "weight_gib": 50.0, "drafter_gib": 1.0, "kv_bytes_per_token": 65536}


def test_tensor_parallel_halves_what_each_holds(tmp_path: Path) -> None:
    one = estimate.estimate(made(tmp_path, architecture=HEAD)).memory
    two = estimate.estimate(made(tmp_path, architecture=HEAD, tensor_parallel_size=2)).memory
    assert one is not None
    assert two is not None
    assert (one.weights, two.weights) == (50 * GIB, 25 * GIB)
    assert one.packed_head == 328775680
    assert two.packed_head == 164387840
    assert (one.kv_per_token, two.kv_per_token) == (65536, 32768)


def test_room_for_keys_and_values_shrinks_by_the_packed_head_and_not_without(tmp_path: Path) -> None:
    machine = {"memory_gib_min": 80}
    on = estimate.estimate(made(tmp_path, architecture=HEAD, accelerator=machine)).memory
    off = estimate.estimate(made(tmp_path, architecture=HEAD, accelerator=machine, fast_draft="disabled")).memory
    assert on is not None
    assert off is not None
    assert off.kv_room == round(80 * GIB * 0.9) - 51 * GIB
    assert off.kv_room - (on.kv_room or 0) == on.packed_head == 328775680
    assert off.packed_head == 0


def test_an_8_bit_cache_is_half_as_large(tmp_path: Path) -> None:
    memory = estimate.estimate(made(tmp_path, architecture=HEAD, kv_cache_dtype="fp8_e4m3")).memory
    assert memory is not None
    assert memory.kv_per_token == 32768


def test_a_context_that_does_not_fit_is_warned_of(tmp_path: Path) -> None:
    small = made(tmp_path, architecture=HEAD, accelerator={"memory_gib_min": 58}, max_model_len=65536)
    (warning,) = [w for w in estimate.estimate(small).warnings if "max_model_len 65536" in w]
    assert "less than one sequence" in warning


def test_gain_grows_with_head_share_and_depth_and_shrinks_with_batch(tmp_path: Path) -> None:
    def gain(sequences: int = 1, depth: int = 3, **facts: float) -> float:
        spec = {"method": "mtp", "num_speculative_tokens": depth}
        found = estimate.gain_at(made(tmp_path, architecture={**HEAD, **facts}, speculative=spec), sequences)
        assert found is not None
        return found.speedup

    assert gain(weight_gib=10) > gain(weight_gib=50) > 0
    assert gain(active_weight_gib=5) > gain()
    assert gain(depth=6) > gain(depth=3)
    assert gain(1) > gain(32) > gain(128) > gain(129) == 0


def test_a_block_drafter_asks_once_with_a_row_for_each_token(tmp_path: Path) -> None:
    spec = {"method": "dflash", "num_speculative_tokens": 7}
    found = estimate.gain_at(made(tmp_path, architecture=HEAD, speculative=spec), 4)
    assert found is not None
    assert (found.calls, found.rows) == (1, 28)


def test_a_measured_step_makes_a_forecast(tmp_path: Path) -> None:
    """3 calls of about 600 us, 84 % of which go away, of a step of 40 ms: 4 %."""
    found = estimate.gain_at(made(tmp_path, architecture=HEAD, expected={"step_seconds": 0.040}), 1)
    stock = measured(248320, 5120, 1, "stock")
    part = measured(248320, 5120, 1) / stock
    assert found is not None
    assert found.forecast
    assert found.speedup == pytest.approx(1 / (1 - 3 * stock * 1e-6 / 0.040 * (1 - part)) - 1, abs=1e-4)
    assert "at most" not in estimate.gain_line(found)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"architecture": {"vocab_size": 49152, "hidden_size": 576, "weight_gib": 0.25}, "max_num_seqs": 65}, "no gain at 65"),
        ({"architecture": HEAD, "max_num_seqs": 256}, "no gain at 256 sequences (256 draft rows)"),
        ({"accelerator": {"kinds": ["cpu"]}}, "a proof, not a gain"),
        ({"fast_draft": "shadow"}, "shadow runs both heads"),
        ({"architecture": {**HEAD, "drafter_gib": 40}, "expected": {"acceptance_per_draft": 1.5}}, "a loss is predicted for speculation"),
        ({"speculative": {"method": "mtp", "num_speculative_tokens": 1, "rejection_sample_method": "fly"}}, "the output changes"),
    ],
)  # fmt: skip
def test_losses_are_told(tmp_path: Path, change: dict[str, Any], said: str) -> None:
    assert any(said in warning for warning in estimate.estimate(made(tmp_path, **change)).warnings)


def test_a_head_for_which_two_bits_lose_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the crossover where it stands no measured point loses; a table in which one does must warn."""
    monkeypatch.setattr(estimate, "MEASURED", {(1000, 1000): (1.0, {1: 1.2})})
    assert any(
        "a loss is predicted at 1 sequence" in w for w in estimate.estimate(made(tmp_path, architecture=HEAD)).warnings
    )


@pytest.mark.parametrize("entry", profiles.entries().values(), ids=lambda e: e.name)
def test_no_profile_of_the_catalogue_promises_a_loss_or_does_not_fit(entry: profiles.Entry) -> None:
    found = estimate.estimate(profiles.read(entry.path))
    assert not [w for w in found.warnings if "loss" in w or "no gain" in w or "less than one sequence" in w]
    assert found.memory is not None


def test_plan_shows_it_in_text_and_json() -> None:
    command = ["plan", "--profile", "qwen3.8-27b-mtp"]
    text = CliRunner().invoke(main, command).stdout
    assert "memory    weights 51.70 GiB, drafter 0.80 GiB, packed head 0.31 GiB on each accelerator" in text
    assert "gain      at most +11% at 1 sequence" in text
    value = json.loads(CliRunner().invoke(main, [*command, "--format", "json"]).stdout)["estimate"]
    assert value["memory"]["packed_head"] == 328775680
    assert [gain["rows"] for gain in value["gains"]] == [1, 32]
