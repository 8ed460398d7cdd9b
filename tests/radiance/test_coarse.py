"""coarse: what the host side refuses, how a scratch reads, and the CPU backend."""

from __future__ import annotations

import pytest
import torch

from radiance import coarse, pack, reference, rotation


def head(n: int = 70, k: int = 192, layout: str = "quarter") -> pack.Packed:
    f = pack.Format(layout, n, k, 64)  # type: ignore[arg-type]
    p = pack.allocate(f, "cpu")
    pack.write_rows(p, 0, torch.randint(0, 4, (n, k), dtype=torch.uint8), torch.rand(n, f.groups) + 0.5)
    return p


@pytest.mark.parametrize("layout", ["quarter", "fragment"])
def test_cpu_is_the_reference(layout: str) -> None:
    p, rot, x = head(layout=layout), rotation.make(192), torch.randn(5, 192)
    scratch = coarse.coarse(p, rot, x)
    assert scratch.kind == "reference"
    assert torch.equal(scratch.row_values(), reference.coarse(p, rot, x))


def test_no_rows_give_no_values() -> None:
    assert coarse.coarse(head(), rotation.make(192), torch.empty(0, 192)).row_values().shape == (0, 70)


def test_a_kernels_scratch_reads_in_token_order() -> None:
    """Values numbered by (draft row, token) and laid out as coarse.cu writes them: pass, tile, row, 8, 2."""
    f = pack.Format("fragment", 120, 64, 64)
    rows, want = 11, torch.arange(16 * 128).view(16, 128) % 251
    piece = torch.empty(2, 8, 8, 8, 2)
    for row in range(16):
        for token in range(128):
            piece[row // 8, token // 16, row % 8, token % 8, token % 16 // 8] = want[row, token]
    scratch = coarse.Scratch("cuda", f, rows, [coarse.Piece(0, rows, 8, piece.bfloat16(), None)])
    assert torch.equal(scratch.row_values().float(), want[:rows, :120].float())


def test_strided_rows_are_taken_as_they_are_and_strided_columns_copied() -> None:
    p, rot = head(), rotation.make(192)
    rows = torch.randn(6, 400)[::2, 10:202]
    assert coarse.checked(p, rot, rows) is rows
    columns = torch.randn(192, 3).t()
    assert coarse.checked(p, rot, columns).stride(1) == 1


@pytest.mark.parametrize(
    ("x", "k", "words"),
    [
        (torch.zeros(2, 191), 192, "191.*k=192"),
        (torch.zeros(192), 192, r"\(192,\)"),
        (torch.zeros(2, 192, dtype=torch.float64), 192, "float64"),
        (torch.zeros(2, 192), 128, "rotation of 128"),
    ],
)
def test_what_does_not_fit_is_refused_with_both_values(x: torch.Tensor, k: int, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        coarse.coarse(head(), rotation.make(k), x)


def test_tensors_of_two_devices_are_refused() -> None:
    with pytest.raises(ValueError, match="move them together"):
        coarse.coarse(head(), rotation.make(192), torch.empty(2, 192, device="meta"))


def test_dense_table_is_the_transposed_factor_with_padded_rows() -> None:
    for a in (1, 12, 20, 36, 65):
        table = coarse.dense_table(a, torch.device("cpu"))
        assert table.shape == (a, -(-a // 4) * 4)
        matrix = rotation.hadamard(a)
        want = torch.zeros(a, a) if matrix is None else torch.tensor(matrix).float().t()
        assert torch.equal(table[:, :a], want)
        assert not table[:, a:].any()
