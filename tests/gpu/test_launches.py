"""`radiance tune` on the GPU at hand: what it writes is what later starts use."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from radiance import tables, tune, tuning
from radiance.pack import Format, default_group

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")]

N, K = 20032, 512


def test_the_table_is_written_and_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    tuning.measured.cache_clear()
    device = tuning.device(torch.device("cuda:0"))
    assert tune.main(["--shape", f"{N}x{K}"]) == 0
    written = tables.path_for(device.name)
    assert str(written) in capsys.readouterr().out
    (shape,) = json.loads(written.read_text())["shapes"]
    assert 0 <= shape["crossover"] <= 256
    tuning.measured.cache_clear()
    tuning.segments.cache_clear()
    chosen = [tuning.Coarse(**fields) for fields in shape["coarse"]]
    assert tuning.coarse(1, Format("fragment", N, K, default_group(K)), device) == chosen[0]
    assert tuning.crossover_rows(N, K, device) == shape["crossover"]
    monkeypatch.undo()
    tuning.measured.cache_clear()
    tuning.segments.cache_clear()
