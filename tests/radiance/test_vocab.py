from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy
import pytest
import torch

from radiance import vocab
from radiance.errors import UnsupportedHead
from radiance.head import DraftHead
from radiance.source import Source
from radiance.status import HeadState, HeadStatus, Phase


def write(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "ids.txt"
    path.write_text(text)
    return path


def test_text_and_npy_say_the_same(tmp_path: Path) -> None:
    text = vocab.read(write(tmp_path, "# mine\n7\n\n 3 # three\n5\n"), 8)
    assert text.tolist() == [3, 5, 7]
    numpy.save(tmp_path / "ids.npy", numpy.array([7, 3, 5], dtype=numpy.int32))
    assert vocab.read(tmp_path / "ids.npy", 8).tolist() == [3, 5, 7]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "holds no ids"),
        ("# nothing\n", "holds no ids"),
        ("1\n8\n", "id 8 is outside the model's vocabulary 0..7"),
        ("-1\n", "id -1 is outside"),
        ("2\n3\n2\n", "id 2 is listed 2 times"),
        ("1\ntwo\n", "line 2: 'two' is no token id"),
    ],
)
def test_wrong_lists_are_named(tmp_path: Path, text: str, says: str) -> None:
    path = write(tmp_path, text)
    with pytest.raises(UnsupportedHead) as caught:
        vocab.read(path, 8)
    assert str(path) in str(caught.value)
    assert says in str(caught.value)
    assert caught.value.reason == "draft_vocab"


def test_unreadable_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedHead, match="cannot be read"):
        vocab.read(tmp_path / "none.txt", 8)
    (tmp_path / "empty.npy").write_bytes(b"")
    with pytest.raises(UnsupportedHead, match="cannot be read"):
        vocab.read(tmp_path / "empty.npy", 8)
    with pytest.raises(UnsupportedHead, match="outside the model's vocabulary"):
        vocab.read(write(tmp_path, "99999999999999999999999\n"), 8)
    numpy.save(tmp_path / "floats.npy", numpy.array([1.5]))
    with pytest.raises(UnsupportedHead, match="of integers"):
        vocab.read(tmp_path / "floats.npy", 8)
    numpy.save(tmp_path / "objects.npy", numpy.array([{}], dtype=object), allow_pickle=True)
    with pytest.raises(UnsupportedHead, match="cannot be read"):
        vocab.read(tmp_path / "objects.npy", 8)


def test_shards_are_local_and_hold_what_must_be_in() -> None:
    ids = torch.tensor([1, 5, 9, 12])
    assert vocab.shard(ids, 0, 8, 2, always=[0]).tolist() == [0, 1, 5]
    assert vocab.shard(ids, 8, 16, 2, always=[0]).tolist() == [1, 4]
    with pytest.raises(UnsupportedHead, match="5 ids, fewer than the 32"):
        vocab.shard(ids, 0, 8, 32, always=[0])
    with pytest.raises(UnsupportedHead, match=r"no id in this rank's share 16\.\.23"):
        vocab.shard(ids, 16, 24, 2)


def test_choose_keeps_the_frequent_and_the_necessary() -> None:
    counts = Counter({4: 10, 2: 10, 9: 3, 1: 1})
    assert vocab.choose(counts, [99], 3) == [2, 4, 99]
    assert vocab.coverage(counts, [2, 4, 99]) == 20 / 24
    assert vocab.coverage(Counter(), [1]) == 0


def test_a_head_drafts_only_listed_tokens_and_scores_them_exactly() -> None:
    torch.manual_seed(0)
    n, k = 640, 128
    weight = torch.randn(n, k).bfloat16()
    listed = torch.arange(0, n, 3).int()
    status = HeadStatus("lm_head", HeadState.OFF)
    head = DraftHead(Source(weight), status, n_valid=n, rerank=64, vocab=listed)
    head.pack(Phase.LOAD, late=False)
    assert head.usable(1, capturing=False)
    x = torch.randn(200, k).bfloat16()
    exact = (x.float() @ weight.float().T).bfloat16()
    ids, values = head.top_tokens(x)
    assert (ids % 3 == 0).all()
    assert torch.equal(values, exact.float().gather(1, ids[:, None]).squeeze(1))
    best = listed[exact[:, listed.long()].float().argmax(1)]
    assert (ids == best).float().mean() > 0.97
    row = head.row(x)
    finite = row.isfinite()
    assert finite.sum(1).tolist() == [64] * 200
    assert not finite[:, [i for i in range(n) if i % 3]].any()
    assert torch.equal(row[finite], exact[finite])
    whole = DraftHead(Source(weight), HeadStatus("lm_head", HeadState.OFF), n_valid=n, rerank=64)
    whole.pack(Phase.LOAD, late=False)
    assert status.packed_bytes < 0.45 * whole.status.packed_bytes
