"""tuning: the choice without a GPU. Devices are faked; every test is named after the reason it guards."""

from __future__ import annotations

import pytest

from radiance import tuning
from radiance.errors import UnsupportedHead
from radiance.pack import Format, default_group

H200 = tuning.Device("H200", (9, 0), 132, 232448)
A100 = tuning.Device("A100", (8, 0), 108, 166912)
L40S = tuning.Device("L40S", (8, 9), 142, 101376)
B200 = tuning.Device("B200", (10, 0), 148, 232448)
DEVICES = (H200, A100, L40S, B200)
KS = (64, 576, 640, 2048, 2880, 5120, 5376, 7168, 8192)


def head(k: int, n: int = 124160) -> Format:
    return Format("fragment", n, k, default_group(k))


@pytest.mark.parametrize("device", DEVICES, ids=lambda d: d.name)
@pytest.mark.parametrize("k", KS)
def test_any_number_of_rows_is_cut_without_gap_or_overlap(device: tuning.Device, k: int) -> None:
    for m in (0, 1, 7, 8, 9, 31, 33, 64, 72, 127, 129, 1025):
        at = 0
        for s in tuning.segments(m, head(k), device):
            assert s.row0 == at
            assert 0 < s.rows <= s.passes * s.kernel.rows <= max(tuning.SCRATCH_ROWS, s.kernel.rows)
            assert s.rows > (s.passes - 1) * s.kernel.rows, "no pass without a row"
            at += s.rows
        assert at == m


@pytest.mark.parametrize("device", DEVICES, ids=lambda d: d.name)
@pytest.mark.parametrize("k", KS)
def test_x_fits_in_shared_memory(device: tuning.Device, k: int) -> None:
    for m in (1, 16, 64, 128):
        assert tuning.coarse(m, head(k), device).shared_bytes(head(k)) + 2048 <= device.shared


def test_wgmma_and_clusters_run_on_hopper_only() -> None:
    for device in (A100, L40S, B200):
        for k in KS:
            for m in (1, 16, 64):
                kernel = tuning.coarse(m, head(k), device)
                assert (kernel.stem, kernel.split) == ("coarse", 1)
    assert tuning.coarse(64, head(5120), H200).stem == "coarse_wgmma"


def test_few_rows_do_not_pay_for_many() -> None:
    widths = [tuning.coarse(m, head(5120), H200).rows for m in (1, 8, 9, 16, 17, 32, 33, 64)]
    assert widths == [8, 8, 16, 16, 32, 32, 64, 64]


def test_64_rows_of_a_large_k_split_their_columns_and_of_a_small_k_do_not() -> None:
    assert tuning.coarse(64, head(5120), H200).split == 2
    assert tuning.coarse(64, head(2048), H200).split == 1


def test_every_row_of_the_tables_is_somebodys_choice() -> None:
    chosen = {tuning.coarse(m, head(k), d) for d in DEVICES for k in KS for m in (1, 9, 17, 33)}
    assert chosen == {*tuning._HOPPER, *tuning._AMPERE}


def test_a_k_beyond_shared_memory_is_declined_by_name() -> None:
    with pytest.raises(UnsupportedHead, match="k=40000") as error:
        tuning.coarse(1, head(40000), H200)
    assert error.value.reason == "k"


def test_select_holds_all_block_maxima_or_declines() -> None:
    assert tuning.select_keys(head(5120)) == 8
    assert tuning.select_keys(head(5120, 262208)) == 24
    for n in (1, 131072, 131136, 917_504):
        assert tuning.select_keys(head(64, n)) * 1024 * 16 >= n
    with pytest.raises(UnsupportedHead, match="n=917505"):
        tuning.select_keys(head(64, 917_505))


def test_rotate_has_whole_warps_for_any_k() -> None:
    for k in (64, 65, 576, 5120, 16384):
        threads = tuning.rotate_threads(k)
        assert threads % 32 == 0
        assert 128 <= threads <= 640


R9700 = tuning.Device("AMD Radeon AI PRO R9700", (12, 0), 32, 65536)


def test_amd_keeps_the_bit_pattern_and_one_stage() -> None:
    quarter = Format("quarter", 124160, 5120, 128)
    for m, warps in ((1, 2), (16, 2), (17, 4), (64, 8), (1000, 8)):
        launch = tuning.triton(m, quarter, R9700, is_amd=True)
        assert (launch.warps, launch.stages, launch.is_int8) == (warps, 1, False)


@pytest.mark.parametrize("device", DEVICES, ids=lambda d: d.name)
def test_portable_launches_elsewhere_are_int8_and_serve_whole_tiles(device: tuning.Device) -> None:
    quarter = Format("quarter", 124160, 5120, 128)
    for m in (1, 16, 17, 33, 64, 128):
        launch = tuning.triton(m, quarter, device, is_amd=False)
        assert launch in tuning.TRITON_CANDIDATES
        assert launch.is_int8
        assert launch.rows >= min(m, 64)
        assert launch.block_n % quarter.block == 0


def test_portable_tiles_are_no_wider_than_needed() -> None:
    quarter = Format("quarter", 124160, 5120, 128)
    assert [tuning.triton(m, quarter, H200, is_amd=False).rows for m in (1, 16, 17, 32, 33, 128)] == [
        16,
        16,
        32,
        32,
        64,
        64,
    ]


def test_names_of_targets() -> None:
    assert [d.arch for d in DEVICES] == ["sm_90a", "sm_80", "sm_89", "sm_100"]
    assert [d.early_launch for d in DEVICES] == [True, False, False, True]


def test_small_heads_go_back_to_the_stock_product_earlier() -> None:
    hopper = tuning.Device("NVIDIA H200", (9, 0), 132, 232448)
    assert tuning.crossover_rows(124160, 5120, hopper) == 128
    assert tuning.crossover_rows(49152, 576, hopper) == 64
    assert tuning.crossover_rows(124160, 5120, tuning.Device("NVIDIA A100", (8, 0), 108, 166912)) == 64
