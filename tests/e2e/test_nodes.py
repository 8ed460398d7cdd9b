"""Tensor parallel 2 over two nodes: a launcher and a real CPU vLLM each, on two loopback addresses; one story, in order.

The model's two ranks start twice, 40 s each.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests import processes
from tests.e2e import checkpoints, harness
from tests.e2e.conftest import MTP, Runs
from tests.e2e.server import Server
from tests.processes import free_port, until

pytestmark = pytest.mark.e2e
LEADER, WORKER = "127.0.0.1", "127.0.0.2"
#: tokens of a stream; two ranks on two cores make 20 a second
STREAMED = 300
ENGINE = {"OMP_NUM_THREADS": "1", "VLLM_HOST_IP": LEADER, "GLOO_SOCKET_IFNAME": "lo"}


@pytest.fixture(scope="module")
def group(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Server, Server]]:
    folder = tmp_path_factory.mktemp("nodes")
    target = checkpoints.tiny_qwen35(folder / "target")
    spread = [
        "--distributed-executor-backend",
        "mp",
        "--nnodes",
        "2",
        "--master-addr",
        LEADER,
        "--master-port",
        str(free_port()),
    ]
    args = {name: value for name, value in harness.ARGS.items() if name != "distributed-executor-backend"}
    harness.write_profile(
        folder, "nodes", target, MTP, fast_draft="enabled", tensor_parallel_size=2, args=args, env=ENGINE
    )
    api, metrics = free_port(), free_port()
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("RADIANCE_")}
    with ExitStack() as both:

        def start(address: str, rank: int, *more: str) -> Server:
            command = [
                harness.BIN / "radiance",
                "serve",
                "--profile",
                "nodes",
                "--profiles-dir",
                folder,
                "--host",
                address,
            ]
            command += ["--port", str(api), "--metrics-port", str(metrics), "--grace-seconds", "120"]
            command += ["--restart-delay-seconds", "0.1", "--", *spread, "--node-rank", str(rank), *more]
            mark, log = processes.mark(), folder / f"node{rank}.log"
            env = {**inherited, **mark, "VLLM_CPU_OMP_THREADS_BIND": str(rank)}
            process = both.enter_context(processes.running(command, log, env=env, cwd=folder))
            return Server(process, log, mark, f"http://{address}:{api}", f"http://{address}:{metrics}")

        worker = start(WORKER, 1, "--headless")
        yield start(LEADER, 0), worker


def head_of(node: Server) -> dict[str, Any]:
    [rank] = node.status()["workers"]
    [head] = rank["heads"]
    return {"rank": rank["rank"], **head}


def answers(leader: Server) -> list[list[int]]:
    found = []
    for prompt in harness.PROMPTS:
        body = {
            "model": "tiny",
            "prompt": prompt,
            "max_tokens": harness.TOKENS,
            "temperature": 0,
            "return_token_ids": True,
        }
        answer = httpx.post(f"{leader.api}/v1/completions", json=body, trust_env=False, timeout=300).raise_for_status()
        found.append(answer.json()["choices"][0]["token_ids"])
    return found


def test_two_nodes_make_one_server(group: tuple[Server, Server], runs: Runs) -> None:
    leader, _ = group
    for node in group:
        assert node.wait("ready", 1)["fast_draft"]["ok"]
    assert [head_of(node)["rank"] for node in group] == [0, 1]
    assert [head_of(node)["n"] for node in group] == [checkpoints.VOCAB // 2] * 2
    warm = leader.status()["acceptance"]
    assert answers(leader) == runs["off"].tokens
    found, stock = leader.status()["acceptance"], runs["stock"]
    counted = [found[name] - warm[name] for name in ("drafts", "accepted_tokens")]
    assert counted == pytest.approx([stock.drafts, stock.accepted], rel=0.02)  # sums over ranks round otherwise


def test_each_node_tells_of_its_own_rank(group: tuple[Server, Server]) -> None:
    leader, worker = group
    until(lambda: head_of(leader)["calls"] == head_of(worker)["calls"] > 100, "both ranks have counted every call")
    for node, rank in zip(group, "01", strict=True):
        page = httpx.get(f"{node.exporter}/metrics", trust_env=False, timeout=30).text
        samples = [s for family in text_string_to_metric_families(page) for s in family.samples]
        [calls] = [s for s in samples if s.name == "radiance_draft_head_calls_total"]
        assert calls.labels["rank"] == rank
        assert calls.value == head_of(node)["calls"]
        assert any(s.name == "radiance_drafts_total" for s in samples) == (node is leader)
    with pytest.raises(httpx.ConnectError):
        httpx.get(f"{worker.api}/health", trust_env=False)


def test_a_killed_engine_core_of_the_leader_makes_a_new_group_in_place(
    group: tuple[Server, Server], runs: Runs
) -> None:
    leader, worker = group
    launchers = [node.process.pid for node in group]
    leader.core().kill()
    leader.wait("ready", 2)
    found = worker.wait("ready", 2)
    assert found["engine"]["exits"]["regroup"] + found["engine"]["exits"]["died"] == 1
    assert answers(leader) == runs["off"].tokens
    assert [node.process.pid for node in group] == launchers
    assert [head_of(node)["state"] for node in group] == ["active", "active"]


def test_a_stream_loses_no_token_when_both_nodes_are_stopped(group: tuple[Server, Server]) -> None:
    """The worker first: its rank is needed until the leader has drained."""
    leader, worker = group
    until(lambda: leader.ready() and worker.ready(), "both serve", harness.START_LIMIT)
    with httpx.Client(trust_env=False, timeout=300) as http:
        undisturbed = [token for tokens in leader.stream(http, STREAMED) for token in tokens]
        assert len(undisturbed) == STREAMED
        begun: list[int] = []
        stopped = 0
        for tokens in leader.stream(http, STREAMED):
            begun += tokens
            if not stopped and len(begun) >= 8:
                stopped = len(begun)
                worker.process.send_signal(signal.SIGTERM)
                until(lambda: worker.status()["phase"] == "draining", "the worker drains")
                leader.process.send_signal(signal.SIGTERM)
    assert stopped < STREAMED // 2, "the signal came early enough"
    assert begun == undisturbed
    for node in group:
        assert node.process.wait(120) == 0, node.log.read_text()[-4000:]
        assert processes.marked(node.mark) == []
