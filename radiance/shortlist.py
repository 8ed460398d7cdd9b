"""The r best candidates of each draft row, and the whole path hidden -> exact answer.

select() is the exact token-level top r by (coarse value descending, id ascending) among ids below n_valid; top_tokens()
and candidates() are what head.py calls: rotate, coarse, select and rerank, which answers, tile by tile over the draft rows;
a launch each on NVIDIA. All of it can be captured in a CUDA graph after warm().
"""

from __future__ import annotations

import torch

from radiance import check, tuning
from radiance import coarse as coarse_pass
from radiance import rerank as rerank_pass
from radiance.coarse import Piece, Scratch
from radiance.kernels import build
from radiance.ledger import Ledger
from radiance.pack import Format, Packed
from radiance.rotation import Rotation
from radiance.source import Source

SELECT_THREADS = 1024
MAX_R = 1024


def select(scratch: Scratch, r: int, n_valid: int) -> torch.Tensor:
    """int32 [m, r]: candidates best first; -1 where fewer than r rows are valid. 1 <= r <= 1024, 1 <= n_valid <= n."""
    check_r(r, n_valid, scratch.format.n)
    if not scratch.pieces:
        return torch.empty(0, r, dtype=torch.int32)
    where = scratch.pieces[0].values.device
    ids = torch.empty(scratch.m, r, dtype=torch.int32, device=where)
    answer = rerank_pass.Answer(scratch.m, where)
    for piece in scratch.pieces:
        select_piece(scratch.kind, scratch.format, piece, r, n_valid, ids, answer)
    return ids


def select_piece(kind: str, format: Format, piece: Piece, r: int, n_valid: int, ids: torch.Tensor,
                 answer: rerank_pass.Answer) -> None:  # fmt: skip
    """select() for one piece, into ids[row0 : row0 + rows]; clears the rows' state in `answer` for rerank."""
    rows = slice(piece.row0, piece.row0 + piece.rows)
    if kind == "reference":
        from radiance import reference

        ids[rows] = reference.select(piece.values, r, n_valid).int()
        return
    assert piece.maxima is not None
    if kind == "triton":
        from radiance.kernels import select_triton

        select_triton.select(piece.values, piece.maxima, format.block, n_valid, ids[rows])
        return
    where = ids.device
    device = tuning.device(where)
    kernel = build.kernel("select", "select_top", {"PER_THREAD": tuning.select_keys(format)}, where, device.arch)
    args = (
        build.pointer(piece.values), build.pointer(piece.maxima), build.integer(piece.maxima.stride(0)),
        build.integer(format.n_padded // 16), build.integer(piece.pass_rows), build.integer(n_valid), build.integer(r),
        build.pointer(ids[rows]), build.pointer(answer.best[rows]), build.pointer(answer.done[rows]),
    )  # fmt: skip
    shared = -(-r // 4) * 16 + 16 * r * 4 + 16
    build.launch(kernel, (piece.rows, 1), SELECT_THREADS, shared, args, early=device.early_launch)


def top_tokens(
    packed: Packed, rotation: Rotation, source: Source, x: torch.Tensor, r: int, n_valid: int, *,
    round_to: torch.dtype = torch.float32, counters: Ledger | None = None, vocab: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
    """Argmax callers: x [m, k] -> (ids int64 [m], exact logits fp32 [m]), the best of the r reranked rows of each.

    Logits are rounded to `round_to` before they are compared, ties to the lowest id. `counters` grow by this call: its
    rows, those that rerank rescued (the coarse winner was not the exact one), its time; with a sampled check if they ask
    for one. `vocab` int32 [n packed]: the row of `source` behind each packed row, ascending, if not all rows are packed.
    """
    ids, answer = shortlist(packed, rotation, x, r, n_valid)
    ids = _rows_behind(ids, vocab)
    rerank_pass.score(
        source, x, ids, answer, round_to=round_to, counters=counters, winners=True, early=vocab is None,
        portable=coarse_pass.path(packed) == "triton",
    )  # fmt: skip
    _checked(packed, source, x, ids, answer, counters, n_valid, round_to, vocab)
    return answer.ids, answer.values


def candidates(
    packed: Packed, rotation: Rotation, source: Source, x: torch.Tensor, r: int, n_valid: int, *,
    round_to: torch.dtype = torch.float32, counters: Ledger | None = None, vocab: torch.Tensor | None = None,
    pieces: list[Piece] | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
    """Top-k and row callers: (ids int64 [m, r] best coarse value first, -1 for none; exact logits fp32 [m, r], -inf there).
    `pieces` takes the coarse values of all rows, for callers that need a full one."""
    ids, answer = shortlist(packed, rotation, x, r, n_valid, pieces)
    ids = _rows_behind(ids, vocab)
    found = rerank_pass.score(
        source, x, ids, answer, round_to=round_to, counters=counters, rows=True, early=vocab is None,
        portable=coarse_pass.path(packed) == "triton",
    )  # fmt: skip
    _checked(packed, source, x, ids, answer, counters, n_valid, round_to, vocab)
    return found


def _checked(packed: Packed, source: Source, x: torch.Tensor, ids: torch.Tensor, answer: rerank_pass.Answer,
             counters: Ledger | None, n_valid: int, round_to: torch.dtype, vocab: torch.Tensor | None) -> None:  # fmt: skip
    if counters is not None and counters.every and len(x) and coarse_pass.path(packed) == "cuda":
        check.run(source, x, ids, answer, counters, n_valid=n_valid, round_to=round_to, vocab=vocab)


def _rows_behind(ids: torch.Tensor, vocab: torch.Tensor | None) -> torch.Tensor:
    """Packed rows [m, r] -> rows of the source, -1 stays; ascending in ascending, so ties still go to the lowest id."""
    return ids if vocab is None else torch.where(ids < 0, ids, vocab[ids.clamp_min(0)])


def shortlist(
    packed: Packed, rotation: Rotation, x: torch.Tensor, r: int, n_valid: int, pieces: list[Piece] | None = None
) -> tuple[torch.Tensor, rerank_pass.Answer]:
    """Candidates int32 [m, r] of any number of draft rows; one coarse scratch of at most 128 of them is alive at a time,
    unless `pieces` collects them."""
    check_r(r, n_valid, packed.format.n)
    x = coarse_pass.checked(packed, rotation, x)
    m, where = x.shape[0], packed.device
    ids = torch.empty(m, r, dtype=torch.int32, device=where)
    answer = rerank_pass.Answer(m, where)
    if coarse_pass.path(packed) == "cuda":
        for segment in tuning.segments(m, packed.format, tuning.device(where)):
            piece = coarse_pass.run(packed, rotation, x, segment, None if segment.row0 else answer.call)
            select_piece("cuda", packed.format, piece, r, n_valid, ids, answer)
            if pieces is not None:
                pieces.append(piece)
    else:
        for start in range(0, m, tuning.SCRATCH_ROWS):
            part = coarse_pass.coarse(packed, rotation, x[start : start + tuning.SCRATCH_ROWS])
            for piece in part.pieces:
                piece.row0 += start
                select_piece(part.kind, packed.format, piece, r, n_valid, ids, answer)
                if pieces is not None:
                    pieces.append(piece)
    return ids, answer


def warm(packed: Packed, rotation: Rotation, source: Source, r: int, n_valid: int, dtype: torch.dtype, m: int,
         round_to: torch.dtype = torch.float32, counters: Ledger | None = None) -> None:  # fmt: skip
    """Build every kernel that calls of up to m draft rows will need, and run each once: call it before any capture.
    `counters`: some to be thrown away, of the kind that the calls will have."""
    widths = [w for w in (1, 9, 17, 33, 65, 129) if w < m] + [m]
    for rows in widths:
        x = torch.randn(rows, packed.format.k, device=packed.device).to(dtype)
        top_tokens(packed, rotation, source, x, r, n_valid, round_to=round_to, counters=counters)
        candidates(packed, rotation, source, x, r, n_valid, round_to=round_to, counters=counters)


def check_r(r: int, n_valid: int, n: int) -> None:
    if not 1 <= r <= MAX_R or not 1 <= n_valid <= n:
        raise ValueError(f"r={r}, n_valid={n_valid}: want 1 <= r <= {MAX_R} and 1 <= n_valid <= {n} (shortlist)")
