"""Variables that Kubernetes makes of Services are kept from vLLM and named."""

from __future__ import annotations

import pytest

from launcher import servicelinks


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("VLLM_PORT", "tcp://10.0.0.7:8000"),
        ("VLLM_SERVICE_HOST", "10.0.0.7"),
        ("VLLM_SERVICE_PORT", "8000"),
        ("VLLM_SERVICE_PORT_HTTP", "8000"),
        ("VLLM_PORT_8000_TCP", "tcp://10.0.0.7:8000"),
        ("VLLM_PORT_8000_TCP_ADDR", "10.0.0.7"),
        ("VLLM_QWEN_SERVICE_HOST", "10.0.0.7"),
        ("MASTER_PORT", "tcp://10.0.0.8:29500"),
        ("VLLM_HOST_IP_PORT", "udp://10.0.0.8:1"),
    ],
)
def test_links(name: str, value: str) -> None:
    assert servicelinks.found({name: value, "PATH": "/bin"}) == (name,)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("VLLM_PORT", "29500"),
        ("MASTER_PORT", "29500"),
        ("VLLM_HOST_IP", "10.0.0.7"),
        ("VLLM_CACHE_ROOT", "/c"),
        ("KUBERNETES_PORT", "tcp://10.0.0.1:443"),
        ("RADIANCE_PORT", "tcp://10.0.0.1:443"),  # settings.py knows those
        ("HTTPS_PROXY", "tcp://proxy:1"),
    ],
)
def test_no_links(name: str, value: str) -> None:
    assert servicelinks.found({name: value}) == ()
