"""The portable kernels in Triton's interpreter, at small sizes, against the reference; and compiled for real targets.

The interpreter has to be chosen before triton is imported, so these tests run in a process of their own.
NOTE: it rounds fp32 to bf16 by cutting bits off, hence the tolerance of one bf16 step on coarse values; and it multiplies
bit-cast bf16 operands wrongly, so only the int8 form of the coarse kernel runs here.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys

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
    assert "8 passed" in done.stdout, done.stdout[-1000:]


def head(n: int, k: int, group: int) -> tuple[pack.Packed, rotation.Rotation]:
    f = pack.Format("quarter", n, k, group)
    p = pack.allocate(f, "cpu")
    pack.write_rows(p, 0, torch.randint(0, 4, (n, k), dtype=torch.uint8), torch.rand(n, f.groups) + 0.5)
    return p, rotation.make(k)


@inside
@pytest.mark.parametrize(("n", "k", "group"), [(200, 192, 64), (130, 576, 64), (70, 1024, 128), (64, 65, 64)])
def test_rotate_and_coarse(n: int, k: int, group: int) -> None:
    from radiance.kernels import coarse_triton

    p, rot = head(n, k, group)
    x = torch.randn(5, k).bfloat16()
    x[2] = 0
    x[3, 1] = float("nan")
    levels, steps = coarse_triton.rotate(rot, x, 16, p.format.k_padded)
    usable = [0, 1, 4]
    want, step = reference.quantise_x(rot, x[usable])
    assert (levels[usable, :k].float() - want).abs().max() <= 1
    assert (levels[usable, :k].float() != want).float().mean() < 0.01
    torch.testing.assert_close(steps[usable], step[:, 0])
    assert not levels[[2, 3, *range(5, 16)]].any()
    assert not levels[:, k:].any()
    values, maxima = coarse_triton.run(p, rot, x, tuning.Triton(16, 4, 1, True))
    got, ref = values[usable, :n].float(), reference.coarse(p, rot, x[usable]).float()
    assert ((got - ref).abs() <= ref.abs() * 2.0**-7 + ref.abs().max() * 1e-3).all()
    assert torch.equal(values.float().view(16, -1, 64).amax(2), maxima.float())
    assert not values[[2, 3]].any()


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
            got = select_triton.select(values, maxima, 64, r, n_valid)
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


@pytest.mark.skipif(INTERPRETED or not HAS_TRITON, reason="needs triton's compiler")
@pytest.mark.parametrize("is_int8", [True, False])
@pytest.mark.parametrize("target", ["cuda:90", "hip:gfx1201"])
def test_the_coarse_kernel_compiles_for(target: str, is_int8: bool) -> None:
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    from radiance.kernels import coarse_triton

    backend, arch = target.split(":")
    fn = coarse_triton.coarse_kernel
    types = {
        "codes": "*u8",
        "half_steps": "*bf16",
        "levels": "*i8",
        "steps": "*fp32",
        "values": "*bf16",
        "maxima": "*bf16",
    }
    fixed = {"K_PADDED": 1024, "GROUP": 128, "BLOCK_N": 64, "ROWS": 16, "IS_INT8": is_int8}
    signature = types | {"n_padded": "i32", "blocks": "i32"} | dict.fromkeys(fixed, "constexpr")
    constants = {(fn.arg_names.index(name),): value for name, value in fixed.items()}
    source = ASTSource(fn=fn, signature=signature, constexprs=constants)
    built = triton.compile(
        source, target=GPUTarget(backend, int(arch) if arch.isdigit() else arch, 32), options={"num_warps": 4}
    )
    assert built.asm["cubin" if backend == "cuda" else "hsaco"][:4] == b"\x7fELF"
