"""One served run per kind of head, shared by all tests of the session; two servers at a time on two cores."""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.e2e import checkpoints, harness
from tests.e2e.harness import Run

MTP = {"method": "mtp", "num_speculative_tokens": 3}


class Runs:
    """`runs["fast"]` is a served run, started when first asked for or when `start` named it before."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.pool = ThreadPoolExecutor(2)
        self.futures: dict[str, Future[Run]] = {}
        target = checkpoints.tiny_qwen35(folder / "target")
        drafter = checkpoints.dflash(folder / "dflash-drafter", target)
        dflash = {"method": "dflash", "num_speculative_tokens": 3}
        (folder / "vocab.txt").write_text("\n".join(map(str, range(0, checkpoints.VOCAB, 2))))
        harness.write_profile(folder, "off", target, None)
        harness.write_profile(folder, "stock", target, MTP)
        harness.write_profile(folder, "fast", target, MTP, fast_draft="enabled")
        harness.write_profile(folder, "shadow", target, MTP, fast_draft="shadow")
        harness.write_profile(folder, "dflash", target, dflash, drafter={"path": str(drafter)}, fast_draft="enabled")

    def start(self, *names: str) -> None:
        """`profile` or `profile-sabotage`."""
        for name in names:
            if name not in self.futures:
                self.futures[name] = self.pool.submit(harness.serve, self.folder, *name.split("-"))

    def __getitem__(self, name: str) -> Run:
        self.start(name)
        run = self.futures[name].result()
        assert run.tokens, f"{name} did not serve:\n{run.log[-4000:]}"
        return run


@pytest.fixture(scope="session")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Runs]:
    for name in list(os.environ):
        if name.startswith("RADIANCE_"):
            del os.environ[name]
    served = Runs(tmp_path_factory.mktemp("e2e"))
    served.start(
        "off", "stock", "fast", "fast-coarse", "fast-random", "dflash", "shadow", "fast-pack", "fast-call", "fast-vocab"
    )
    yield served
    served.pool.shutdown(wait=True, cancel_futures=True)
