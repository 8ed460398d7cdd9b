"""The portable kernels in Triton's interpreter, at small sizes, against the reference; and compiled for real targets.

The interpreter has to be chosen before triton is imported, so these tests run in a process of their own.
NOTE: it rounds fp32 to bf16 by cutting bits off, hence the tolerance of one bf16 step on coarse values; and it multiplies
bit-cast bf16 operands wrongly, so only the int8 form of the coarse kernel runs here.
"""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from typing import Any

import pytest
import torch

from radiance import pack, reference, rotation, tuning
from radiance.source import Source

HAS_TRITON = importlib.util.find_spec("triton") is not None
INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
inside = pytest.mark.skipif(not INTERPRETED, reason="runs in the process that test_in_the_interpreter starts")


@pytest.mark.skipif(INTERPRETED or not HAS_TRITON, reason="starts the others; needs triton")
def test_in_the_interpreter() -> None:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", __file__]
    done = subprocess.run(
        command, env=os.environ | {"TRITON_INTERPRET": "1"}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout[-4000:]
    assert "10 passed" in done.stdout, done.stdout[-1000:]


def head(n: int, k: int, group: int) -> tuple[pack.Packed, rotation.Rotation]:
    f = pack.Format("quarter", n, k, group)
    p = pack.allocate(f, "cpu")
    pack.write_rows(p, 0, torch.randint(0, 4, (n, k), dtype=torch.uint8), torch.rand(n, f.groups) + 0.5)
    return p, rotation.make(k)


@inside
@pytest.mark.parametrize(
    ("n", "k", "group", "launch"),
    [
        (200, 192, 64, tuning.Triton(16, 4, 1, True)),
        (130, 576, 64, tuning.Triton(16, 4, 3, True, block_n=128)),  # the last tile is half outside
        (70, 1024, 128, tuning.Triton(8, 4, 2, True)),  # two tiles of draft rows
        (64, 65, 64, tuning.Triton(16, 4, 1, True)),
    ],
)
def test_rotate_and_coarse(n: int, k: int, group: int, launch: tuning.Triton) -> None:
    from radiance.kernels import coarse_triton, rotate_triton

    p, rot = head(n, k, group)
    x = torch.randn(11, k).bfloat16()
    x[2] = 0
    x[3, 1] = float("nan")
    levels, steps = rotate_triton.rotate(rot, x, 16, p.format.k_padded, by_words=False)
    usable = [0, 1, *range(4, 11)]
    want, step = reference.quantise_x(rot, x[usable])
    assert (levels[usable, :k].float() - want).abs().max() <= 1
    assert (levels[usable, :k].float() != want).float().mean() < 0.01
    torch.testing.assert_close(steps[usable], step[:, 0])
    assert not levels[[2, 3, *range(11, 16)]].any()
    assert not levels[:, k:].any()
    values, maxima = coarse_triton.run(p, rot, x, launch)
    got, ref = values[usable, :n].float(), reference.coarse(p, rot, x[usable]).float()
    assert ((got - ref).abs() <= ref.abs() * 2.0**-7 + ref.abs().max() * 1e-3).all()
    assert torch.equal(values.float().view(16, -1, 64).amax(2), maxima.float())
    assert not values[[2, 3]].any()


@inside
def test_levels_half_way_round_to_even_as_in_the_reference() -> None:
    """k = 65 is not mixed, so where the greatest of x is 127 its levels are x itself."""
    from radiance.kernels import rotate_triton

    rot = rotation.make(65)
    x = torch.arange(-32, 33)[None] * 0.5
    x[0, 0] = 127
    levels, steps = rotate_triton.rotate(rot, (x * rot.x_scale).bfloat16(), 1, 256, by_words=False)
    assert steps.item() == 1
    assert torch.equal(levels[:, :65].float(), x.round())


@inside
def test_columns_by_words() -> None:
    from radiance.kernels import rotate_triton

    for k, k_padded in ((65, 256), (192, 256), (1024, 1024)):
        rot, x = rotation.make(k), torch.randn(3, k)
        plain, _ = rotate_triton.rotate(rot, x, 4, k_padded, by_words=False)
        words, _ = rotate_triton.rotate(rot, x, 4, k_padded, by_words=True)
        chunks = plain.view(4, -1, 4, 4, 4)  # 64 columns: 16 bytes each of 4 lanes, by words
        assert torch.equal(words.view(4, -1, 4, 4, 4), chunks.transpose(2, 3))


@inside
@pytest.mark.parametrize("kind", ["random", "ties", "equal"])
def test_select(kind: str) -> None:
    from radiance.kernels import select_triton

    values = torch.randn(3, 320).bfloat16()
    if kind == "ties":
        values = (values.float() * 2).round().clamp_min(0).bfloat16()
    if kind == "equal":
        values = torch.zeros(3, 320).bfloat16()
    maxima = values.view(3, 5, 64).amax(2)
    for r in (1, 8, 64):
        for n_valid in (320, 300, 256, 5):
            got = torch.empty(3, r, dtype=torch.int32)
            select_triton.select(values, maxima, 64, n_valid, got)
            assert torch.equal(got.long(), reference.select(values, r, n_valid)), f"r={r}, n_valid={n_valid}"


@inside
def test_rerank() -> None:
    from radiance.kernels import rerank_triton
    from radiance.rerank import Answer

    ids = torch.tensor([[3, 1, 29, -1], [7, 7, 2, 0]], dtype=torch.int32)
    x = torch.randn(2, 100).bfloat16()
    w = torch.randn(30, 100)
    for source in (
        Source(w),
        Source(w.bfloat16()),
        Source(w.half()),
        Source(w.to(torch.float8_e4m3fn), torch.rand(30) + 0.5),
    ):
        answer = Answer(2, torch.device("cpu"))
        out_ids, out = torch.empty(2, 4, dtype=torch.int64), torch.empty(2, 4)
        counters = torch.zeros(8, dtype=torch.int64)
        rerank_triton.score(source, x, ids, answer, out_ids, out, torch.float32, counters, True)
        want = reference.rerank(source, x, ids.long())
        torch.testing.assert_close(out, want, rtol=1e-4, atol=1e-4)
        best, value = reference.best(ids.long(), out)
        assert torch.equal(answer.ids, best)
        assert torch.equal(answer.values, value)
        assert torch.equal(out_ids, ids.long())
        assert counters.tolist() == [1, 2, int((best != ids[:, 0]).sum()), 0, 0, 0, 0, 0]


COARSE = {"codes": "*i32", "half_steps": "*bf16", "levels": "*i8", "steps": "*fp32", "values": "*bf16", "maxima": "*bf16",
          "n_padded": "i32", "blocks": "i32"}  # fmt: skip
COARSE_SIZES = {"K_PADDED": 1024, "GROUP": 128, "BLOCK_N": 64, "ROWS": 16, "STAGES": 3}
SELECT = {"n_padded": "i32", "blocks": "i32", "n_valid": "i32", "r": "i32"}
#: module, kernel -> types of its arguments in any order, sizes
KERNELS: dict[tuple[str, str], tuple[dict[str, str], dict[str, Any]]] = {
    ("coarse", "coarse_words"): (COARSE, COARSE_SIZES),
    ("coarse", "coarse_bits"): (COARSE | {"codes": "*u8"}, COARSE_SIZES | {"STAGES": 1}),
    ("rotate", "transform"): (
        {"x": "*bf16", "x_stride": "i32", "scale": "*fp32", "out": "*fp32"},
        {"K": 576, "A": 36, "B": 16, "LOG_B": 4, "SIZE": 1024},
    ),
    ("rotate", "quantise"): (
        {"y": "*fp32", "table": "*fp32", "levels": "*i8", "steps": "*fp32", "norm": "fp32", "m": "i32"},
        {"K": 576, "K_PADDED": 768, "A": 36, "B": 16, "A2": 64, "PAD": 0, "DENSE": True, "IN_WORDS": True},
    ),
    ("select", "select_blocks"): (
        {"values": "*bf16", "maxima": "*bf16", "chosen": "*i32"} | SELECT, {"BLOCK": 64, "SIZE": 2048}
    ),
    ("select", "select_tokens"): (
        {"values": "*bf16", "chosen": "*i32", "picked": "*i32"} | SELECT, {"BLOCK": 64, "SIZE": 2048}
    ),
    ("select", "order_tokens"): (
        {"chosen": "*i32", "picked": "*i32", "ids": "*i32"} | SELECT, {"BLOCK": 64, "SIZE": 32, "CHUNK": 32}
    ),
    ("rerank", "score_candidates"): (
        {"weight": "*u8", "w_stride": "i32", "scale": "*fp32", "x": "*bf16", "x_stride": "i32", "ids": "*i32",
         "values": "*fp32", "r": "i32"},
        {"K": 5120, "BLOCK_K": 8192, "IS_E4M3": True, "ROUND": 1},
    ),
    ("rerank", "best_of_row"): (
        {"ids": "*i32", "values": "*fp32", "out_ids": "*i64", "best_ids": "*i64", "best_values": "*fp32",
         "counters": "*i64", "r": "i32"},
        {"SIZE": 32, "ROWS": True, "COUNT": True},
    ),
}  # fmt: skip


def compiled(target: str, module: str, kernel: str) -> Any:
    """The kernel compiled for a GPU that need not be here."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    backend, arch = target.split(":")
    fn = getattr(importlib.import_module(f"radiance.kernels.{module}_triton"), kernel)
    types, sizes = KERNELS[module, kernel]
    place = {name: (i,) for i, name in enumerate(fn.arg_names)}
    signature = {name: types.get(name, "constexpr") for name in fn.arg_names}
    aligned = {
        place[name]: [["tt.divisibility", 16]] for name in signature if signature[name][0] == "*" or name == "n_padded"
    }
    source = ASTSource(
        fn=fn, signature=signature, constexprs={place[name]: v for name, v in sizes.items()}, attrs=aligned
    )
    return triton.compile(
        source, target=GPUTarget(backend, int(arch) if arch.isdigit() else arch, 32), options={"num_warps": 4}
    )


@pytest.mark.skipif(INTERPRETED or not HAS_TRITON, reason="needs triton's compiler")
@pytest.mark.parametrize(("module", "kernel"), KERNELS)
@pytest.mark.parametrize("target", ["cuda:90", "hip:gfx1201"])
def test_every_kernel_compiles_for(target: str, module: str, kernel: str) -> None:
    built = compiled(target, module, kernel)
    assert built.asm["cubin" if target.startswith("cuda") else "hsaco"][:4] == b"\x7fELF"


@pytest.mark.skipif(INTERPRETED or not HAS_TRITON, reason="needs triton's compiler")
def test_codes_go_from_memory_to_the_product_without_an_exchange_between_lanes() -> None:
    """What made coarse_words three times as fast as bytes, and would be lost without a wrong result (docs/kernels.md)."""
    built = compiled("cuda:90", "coarse", "coarse_words")
    loop = re.search(r"scf\.for .*?scf\.yield", built.asm["ttgir"], re.DOTALL)
    assert loop is not None
    assert loop[0].count("warp_group_dot ") == 4
    assert loop[0].count("async_copy_global_to_local") == 5, "codes and x of four groups are prefetched"
    assert "convert_layout" not in loop[0]
    assert "local_store" not in loop[0]
    assert "prmt" not in built.asm["ptx"].split("wgmma")[1], "four bytes are still the word they came from"
