"""Numbers that kernels write and the host reads, without either waiting for the other.

Kernels that write to host memory cost 6 us a call on an H200: the next kernel waits until the bus has answered. Writing to
device memory costs a tenth of that; the host then copies the words on a stream of its own, when somebody asks.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from radiance.kernels.build import bindings, check

log = logging.getLogger("vllm.radiance")

#: longest that a reader waits for the device; a copy takes 20 us unless the device is stuck
PATIENCE_SECONDS = 0.02


class Board:
    """`words` int64 [count] in device memory, 0 at first. The memory is neither torch's nor vLLM's, so that a sleeping engine
    cannot take it away, and stays until the process ends, as captured graphs may hold its address."""

    def __init__(self, count: int, device: torch.device) -> None:
        driver = bindings()[0]
        self.count = count
        self._lock = threading.Lock()
        with torch.cuda.device(device):
            torch.cuda.current_stream()  # the primary context is current from here on
            self._context = check(driver.cuCtxGetCurrent(), "context")
            self._address = int(check(driver.cuMemAlloc(8 * count), "board"))
            check(driver.cuMemsetD8(self._address, 0, 8 * count), "board")
            self._stream = check(driver.cuStreamCreate(driver.CUstream_flags.CU_STREAM_NON_BLOCKING), "board's stream")
            self._host = torch.zeros(count, dtype=torch.int64, pin_memory=True)
            self.words = torch.as_tensor(self, device=device)
        self._last = [0] * count
        self._is_pending = self._has_failed = False

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        return {"shape": (self.count,), "typestr": "<i8", "data": (self._address, False), "version": 3}

    def read(self) -> list[int]:
        """The words now; what was last read if the device does not answer. Never waits longer than PATIENCE_SECONDS; any
        thread may call it, also while a graph is being captured, here or elsewhere."""
        with self._lock:
            try:
                with self._relaxed() as driver:
                    if not self._is_pending or self._is_done(driver, 0.0):
                        check(
                            driver.cuMemcpyDtoHAsync(
                                self._host.data_ptr(), self._address, 8 * self.count, self._stream
                            ),
                            "copy",
                        )
                        self._is_pending = True
                        if self._is_done(driver, PATIENCE_SECONDS):
                            self._last, self._is_pending = self._host.tolist(), False
            except RuntimeError as error:  # a dead context: what was counted before still counts
                if not self._has_failed:
                    log.warning("Radiance cannot read its counters any more: %s", error)
                self._has_failed = True
            return self._last

    def _is_done(self, driver: Any, patience: float) -> bool:
        end = time.monotonic() + patience
        while (status := driver.cuStreamQuery(self._stream)[0]) == driver.CUresult.CUDA_ERROR_NOT_READY:
            if time.monotonic() >= end:
                return False
            time.sleep(0.0002)
        check((status,), "board's stream")
        return True

    @contextmanager
    def _relaxed(self) -> Iterator[Any]:
        """Our context in this thread, and calls that a capture in any thread would otherwise forbid to all threads: they
        touch a stream that nobody captures."""
        driver = bindings()[0]
        check(driver.cuCtxPushCurrent(self._context), "context")
        try:
            mode = driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED
            before = check(driver.cuThreadExchangeStreamCaptureMode(mode), "capture mode")
            try:
                yield driver
            finally:
                check(driver.cuThreadExchangeStreamCaptureMode(before), "capture mode")
        finally:
            check(driver.cuCtxPopCurrent(), "context")
