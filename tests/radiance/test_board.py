"""kernels/board: what a reader gets from a device that answers, is busy, or is gone. The driver is faked."""

from __future__ import annotations

import ctypes
import logging
import threading
from typing import Any

import pytest
import torch

from radiance.kernels import board


class Driver:
    """Device memory is `there`; a copy arrives when the stream is looked at while not busy."""

    class CUresult:
        CUDA_ERROR_NOT_READY = 600

    class CUstreamCaptureMode:
        CU_STREAM_CAPTURE_MODE_RELAXED = 2

    def __init__(self, there: torch.Tensor) -> None:
        self.there, self.is_busy, self.is_dead = there, False, False
        self.copies: list[tuple[int, int]] = []
        self.mode, self.contexts, self.copied_in_mode = 0, 0, -1

    def cuCtxPushCurrent(self, context: Any) -> tuple[int]:
        self.contexts += 1
        return (0,)

    def cuCtxPopCurrent(self) -> tuple[int, None]:
        self.contexts -= 1
        return (0, None)

    def cuThreadExchangeStreamCaptureMode(self, mode: int) -> tuple[int, int]:
        before, self.mode = self.mode, mode
        return (0, before)

    def cuMemcpyDtoHAsync(self, to: int, start: int, size: int, stream: Any) -> tuple[int]:
        if self.is_dead:
            return (700,)
        self.copied_in_mode = self.mode
        self.copies.append((to, size))
        return (0,)

    def cuStreamQuery(self, stream: Any) -> tuple[int]:
        if self.is_busy:
            return (self.CUresult.CUDA_ERROR_NOT_READY,)
        for to, size in self.copies:
            ctypes.memmove(to, self.there.data_ptr(), size)
        self.copies.clear()
        return (0,)


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> tuple[board.Board, Driver]:
    driver = Driver(torch.arange(4))
    monkeypatch.setattr(board, "bindings", lambda: (driver, None))
    found = board.Board.__new__(board.Board)  # __init__ needs a GPU
    found.count, found._lock = 4, threading.Lock()
    found._context = found._stream = object()
    found._address = driver.there.data_ptr()
    found._host = torch.zeros(4, dtype=torch.int64)
    found._last = [0] * 4
    found._is_pending = found._has_failed = False
    return found, driver


def test_a_reader_gets_the_words_of_now(made: tuple[board.Board, Driver]) -> None:
    found, driver = made
    assert found.read() == [0, 1, 2, 3]
    driver.there += 10
    assert found.read() == [10, 11, 12, 13]


def test_the_copy_takes_no_part_in_captures_and_leaves_the_thread_as_it_was(made: tuple[board.Board, Driver]) -> None:
    found, driver = made
    found.read()
    assert driver.copied_in_mode == 2
    assert (driver.mode, driver.contexts) == (0, 0)


def test_a_busy_device_gives_the_last_words_and_catches_up(made: tuple[board.Board, Driver]) -> None:
    found, driver = made
    found.read()
    driver.is_busy = True
    driver.there += 10
    for _ in range(3):
        assert found.read() == [0, 1, 2, 3]
    assert len(driver.copies) == 1, "a stuck device must not be given more and more work"
    driver.is_busy = False
    driver.there += 10
    assert found.read() == [20, 21, 22, 23]


def test_a_dead_device_gives_the_last_words_and_is_told_of_once(
    made: tuple[board.Board, Driver], caplog: pytest.LogCaptureFixture
) -> None:
    found, driver = made
    found.read()
    driver.is_dead = True
    with caplog.at_level(logging.WARNING, "vllm.radiance"):
        assert found.read() == found.read() == [0, 1, 2, 3]
    assert len(caplog.records) == 1
    assert (driver.mode, driver.contexts) == (0, 0)
