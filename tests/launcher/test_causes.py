"""Which exit code the last lines of a vLLM that could not start give. The lines are those of the libraries."""

from __future__ import annotations

import pytest

from launcher.causes import explain
from launcher.errors import EngineDied

LINES = {
    "huggingface_hub.errors.GatedRepoError: 401 Client Error. (Request ID: Root=1)": 77,
    "huggingface_hub.errors.RepositoryNotFoundError: 404 Client Error. (Request ID: Root=1)": 66,
    "huggingface_hub.errors.RevisionNotFoundError: 404 Client Error.": 66,
    "OSError: nobody/none is not a local folder and is not a valid model identifier listed on 'https://hub'": 66,
    "requests.exceptions.ConnectionError: (MaxRetryError('HTTPSConnectionPool": 75,
    "httpx.ConnectTimeout: timed out": 75,
    "socket.gaierror: [Errno -3] Temporary failure in name resolution": 75,
    "OSError: We couldn't connect to 'https://hub' to load the files": 75,
    "RuntimeError: No CUDA GPUs are available": 69,
    "RuntimeError: Failed to infer device type, please set the environment variable": 69,
    "PermissionError: [Errno 13] Permission denied: '/.cache/vllm'": 73,
    "OSError: [Errno 30] Read-only file system: '/root/.triton'": 73,
    "OSError: [Errno 28] No space left on device": 73,
    "torch.OutOfMemoryError: CUDA out of memory.": 70,
    "RuntimeError: Engine core initialization failed. See root cause above.": 70,
}


@pytest.mark.parametrize(("line", "code"), LINES.items())
def test_causes(line: str, code: int) -> None:
    found = explain(["INFO before", line, "INFO after"], "vLLM ended by itself", starting=True)
    assert found.exit_code == code
    assert line in str(found)


@pytest.mark.parametrize("line", LINES)
def test_a_vllm_that_has_served_died_whatever_it_printed(line: str) -> None:
    assert type(explain([line], "vLLM ended", starting=False)) is EngineDied


def test_the_exact_cause_wins_over_the_general_one_that_follows_from_it() -> None:
    tail = [
        "GatedRepoError: 401 Client Error",
        "ConnectionError: in another thread",
        "RuntimeError: Engine core failed",
    ]
    assert explain(tail, "vLLM ended", starting=True).exit_code == 77


def test_nothing_known_points_to_the_log() -> None:
    assert "its own log above says why" in str(explain(["INFO all fine"], "vLLM ended", starting=True))
