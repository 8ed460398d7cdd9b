"""A headless node follows the leader of its model: two launchers on two loopback addresses, real processes, no model."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import figures
import httpx
import pytest
from serving import Served

from launcher import arguments, nodes, plan, report
from launcher.engine import Engine, Verdict
from launcher.errors import UsageProblem
from launcher.leader import Follower, Leader, Word
from launcher.options import Options
from launcher.states import Phase
from radiance.status import HeadState
from tests.processes import PATIENCE, alive, free_port, until

Serve = Callable[..., Served]
FAST = ("--restart-delay-seconds", "0.05")
LEADER, WORKER = "127.0.0.1", "127.0.0.2"
SPREAD = ("--nnodes", "2", "--master-addr", LEADER, "--master-port", str(free_port()))


@pytest.fixture
def pair(serve: Serve) -> Callable[..., tuple[Served, Served]]:
    def start(*options: str) -> tuple[Served, Served]:
        port = free_port()
        leader = serve(*FAST, *options, "--", *SPREAD, "--node-rank", "0", ports={"--metrics-port": port})
        return leader, join(serve, leader, *options)

    return start


def join(serve: Serve, leader: Served, *options: str, fake: str = "", **change: Any) -> Served:
    return serve(*FAST, *options, "--", *SPREAD, "--node-rank", "1", "--headless", fake=fake,
                 ports={"--metrics-port": leader.metrics_port}, host=WORKER, **change)  # fmt: skip


def says(worker: Served, text: str) -> None:
    """Until /readyz is 503 and says this."""

    def told() -> bool:
        answer = worker.get("/readyz")
        return answer is not None and answer.status_code == 503 and text in answer.text

    until(told, text)


def lives(served: Served) -> list[str]:
    path = served.notes / "lives.jsonl"
    return path.read_text().splitlines() if path.exists() else []


def page(served: Served) -> str:
    answer = served.get("/metrics")
    assert answer is not None
    return answer.text


def test_a_node_that_came_first_waits_for_its_leader(serve: Serve) -> None:
    port = free_port()
    worker = serve(*FAST, "--", *SPREAD, "--node-rank", "1", "--headless", ports={"--metrics-port": port}, host=WORKER)
    until(lambda: f"waiting: the leader's launcher at http://{LEADER}:{port} does not answer" in worker.log, "it waits")
    assert (worker.status()["phase"], lives(worker)) == ("fetching", [])
    leader = serve(*FAST, "--", *SPREAD, "--node-rank", "0", ports={"--metrics-port": port})
    leader.wait_ready()
    worker.wait_ready()
    assert "--headless" in worker.seen()["argv"]
    assert "--headless" not in leader.seen()["argv"]


def test_it_tells_of_its_own_ranks_and_leaves_the_rest_to_the_leader(
    pair: Callable[..., tuple[Served, Served]],
) -> None:
    leader, worker = pair()
    worker.wait_ready()
    found, shown = worker.status(), page(worker)
    assert found["engine"]["leader"] == f"http://{LEADER}:{leader.metrics_port}"
    assert found["engine"]["url"] is None
    assert [head["state"] for rank in found["workers"] for head in rank["heads"]] == ["active"]
    assert found["acceptance"] == {
        "available": False,
        "reason": f"the leader counts drafts: {found['engine']['leader']}/status",
    }
    assert f"up, follows {found['engine']['leader']}, pid" in report.text(found)
    assert "radiance_ready 1.0" in shown
    assert 'radiance_draft_head_verdict{verdict="ok"} 1.0' in shown
    for name in ("radiance_vllm_scrape_success", "radiance_vllm_spec_metrics_present", "radiance_drafts_total"):
        assert f"\n{name} " not in shown
        assert f"\n{name} " in page(leader)
    assert "cannot be read" not in worker.log


def test_it_is_ready_when_the_leader_is(pair: Callable[..., tuple[Served, Served]]) -> None:
    leader, worker = pair()
    worker.wait_ready()
    (leader.notes / "deaf").touch()
    says(worker, "vLLM does not answer /health")
    (leader.notes / "deaf").unlink()
    worker.wait_ready()
    assert len(lives(worker)) == 1


def test_a_vllm_that_the_leader_started_anew_is_joined_anew(pair: Callable[..., tuple[Served, Served]]) -> None:
    leader, worker = pair()
    worker.wait_ready()
    (leader.notes / "end").write_text("1")
    until(lambda: len(lives(leader)) == 2 and len(lives(worker)) == 2, "both vLLMs were started again")
    worker.wait_ready()
    assert worker.status()["engine"]["exits"]["regroup"] == 1
    assert "the leader has started its vLLM anew" in worker.log
    assert len(lives(worker)) == 2


def test_a_rank_that_died_cannot_come_back_into_its_group(pair: Callable[..., tuple[Served, Served]]) -> None:
    """The leader of an idle group does not notice, so the end of this launcher has to tell whoever runs both."""
    leader, worker = pair("--wedge-seconds", "2")
    worker.wait_ready()
    (worker.notes / "end").write_text("1")
    assert worker.process.wait(PATIENCE) == 70
    assert "waiting up to 2 s for the leader to start its vLLM anew" in worker.log
    assert (len(lives(worker)), len(lives(leader))) == (1, 1)


def test_a_rank_that_died_with_its_leader_is_in_the_next_group(pair: Callable[..., tuple[Served, Served]]) -> None:
    leader, worker = pair()
    worker.wait_ready()
    (worker.notes / "end").write_text("1")
    until(lambda: "waiting up to 30 s" in worker.log, "the worker noticed first")
    (leader.notes / "end").write_text("1")
    until(lambda: len(lives(leader)) == 2 and len(lives(worker)) == 2, "both vLLMs were started again")
    worker.wait_ready()
    exits = worker.status()["engine"]["exits"]
    assert (exits["died"], exits["regroup"]) == (1, 0)


def test_a_node_that_comes_too_late_waits_for_the_next_group(
    pair: Callable[..., tuple[Served, Served]], serve: Serve
) -> None:
    leader, worker = pair()
    worker.wait_ready()
    worker.process.kill()
    worker.process.wait()
    late = join(serve, leader)
    says(late, "has a vLLM whose group this node has left; it must start it anew")
    assert len(lives(late)) == 1, "of the one before it"
    (leader.notes / "end").write_text("1")
    late.wait_ready()
    assert len(lives(late)) == 2


def test_a_leader_that_serves_but_is_not_ready_ends_the_start_all_the_same(serve: Serve) -> None:
    """require: ready and a declined head: it serves, and /readyz is 503 for good, on both nodes."""
    leader = serve("--", *SPREAD, "--node-rank", "0", fake="head=declined", require="ready")
    worker = join(serve, leader, require="ready", startup_budget_seconds=30)
    leader.wait_phase("degraded")
    worker.wait_phase("ready")
    says(worker, "the profile requires the 2-bit draft head: rank 0 lm_head: declined")


def test_a_head_that_the_profile_requires_is_required_of_every_node(serve: Serve) -> None:
    leader = serve("--", *SPREAD, "--node-rank", "0", require="fail")
    worker = join(serve, leader, fake="head=declined", require="fail")
    assert worker.process.wait(PATIENCE) == 70
    assert "rank 0 lm_head: declined" in worker.log


def test_a_head_that_fails_later_ends_no_node(tmp_path: Path) -> None:
    options = {"extra": ("--headless", "--node-rank", "1", *SPREAD)}
    engine = figures.make_engine(tmp_path, options=options, require="fail")
    engine.begin()
    follower = Follower(engine, Leader("http://127.0.0.1:1"), joined=5.0)
    for state, phase in (("active", "ready"), ("declined", "degraded")):
        figures.put(engine, figures.head(state=HeadState(state)))
        follower._answered(Word(Phase.READY, True, "ready", 5.0))
        assert (engine.phase, engine.refused) == (phase, "")


def test_a_stop_of_one_that_does_not_serve_yet_is_short(serve: Serve) -> None:
    leader = serve("--", *SPREAD, "--node-rank", "0", fake="hang")
    worker = join(serve, leader, "--grace-seconds", "600")
    worker.seen()
    assert worker.stop() == 0


def test_a_stop_of_the_worker_alone_is_no_clean_one(pair: Callable[..., tuple[Served, Served]]) -> None:
    _, worker = pair("--grace-seconds", "1")
    worker.wait_ready()
    assert worker.stop() == 137
    assert "the leader was still there after 1 s" in worker.log


def test_a_signal_during_a_regroup_starts_nothing(pair: Callable[..., tuple[Served, Served]]) -> None:
    leader, worker = pair("--max-restarts", "0")
    worker.wait_ready()
    (leader.notes / "end").write_text("1")
    assert leader.process.wait(PATIENCE) == 70
    assert worker.stop() == 0
    assert len(lives(worker)) == 1


def test_where_the_drafter_is_another_nodes_no_head_is_missed(tiny: Any) -> None:
    spread = ("--node-rank", "0", *SPREAD)
    split = plan.build(tiny(pipeline_parallel_size=2, require="ready"), Options(extra=spread), {})
    assert Engine(split).verdict() == Verdict(
        True, True, "no rank of this node has a draft head: the drafter is on the last one"
    )
    assert not Engine(plan.build(tiny(tensor_parallel_size=2), Options(extra=spread), {})).verdict().ok


def test_ranks_stay_until_the_leader_has_drained(pair: Callable[..., tuple[Served, Served]]) -> None:
    leader, worker = pair("--grace-seconds", "600")  # it does not wait that long: the leader's end ends it
    worker.wait_ready()
    [pid] = worker.seen()["pids"]
    answers: list[int] = []

    def ask() -> None:
        body = {"model": "tiny", "prompt": "x", "stop": ["answer.go"]}
        url = f"http://{LEADER}:{leader.port}/v1/completions"
        answers.append(httpx.post(url, json=body, trust_env=False, timeout=PATIENCE).status_code)

    asking = threading.Thread(target=ask)
    asking.start()
    until(lambda: "answer.go" in (leader.notes / "requests.jsonl").read_text(), "the request runs")
    for served in (worker, leader):
        served.process.terminate()
    worker.wait_phase("draining")
    leader.wait_phase("draining")
    until(lambda: "SIGTERM: stopping vLLM" in leader.log, "the leader drains")
    assert alive(pid)
    (leader.notes / "answer.go").touch()
    asking.join(PATIENCE)
    assert answers == [200]
    assert leader.process.wait(PATIENCE) == 0
    assert worker.process.wait(PATIENCE) == 0
    assert not alive(pid)


def test_a_leader_that_is_gone_is_70(pair: Callable[..., tuple[Served, Served]]) -> None:
    leader, worker = pair("--wedge-seconds", "5")
    worker.wait_ready()
    leader.process.kill()
    says(worker, "its launcher does not answer")
    assert worker.process.wait(PATIENCE) == 70
    assert "has not answered for 5 s" in worker.log


def test_a_stop_while_it_waits_is_clean(serve: Serve) -> None:
    worker = serve("--", *SPREAD, "--node-rank", "1", "--headless", ports={"--metrics-port": free_port()}, host=WORKER)
    until(lambda: "waiting: the leader's launcher" in worker.log, "it waits")
    assert worker.stop() == 0
    assert lives(worker) == []


@pytest.mark.parametrize(
    "extra", [SPREAD, ("-n", "2", "--master_addr=127.0.0.1"), ("--nnodes=2", "-r", "0", *SPREAD[2:])]
)
def test_nodes_are_read_as_vllm_reads_them(extra: tuple[str, ...]) -> None:
    assert nodes.read(("model", *extra)) == nodes.Nodes(2, False, LEADER)
    headless = ("--headless", "--node-rank", "1")
    assert nodes.read(("model", *extra, *headless)) == nodes.Nodes(2, True, LEADER)


@pytest.mark.parametrize(
    ("extra", "port", "part"),
    [
        (("--headless",), 9410, "--headless without --master-addr"),
        (("--headless", "-r", "1", *SPREAD), 0, "--metrics-port 0"),
        (("--nnodes", "two"), 9410, "--nnodes 'two'"),
        (("--nnodes", "0"), 9410, "--nnodes '0'"),
        (("--headless", *SPREAD), 9410, "--node-rank 0 of --nnodes 2 with --headless"),
        (("--node-rank", "1", *SPREAD), 9410, "--node-rank 1 of --nnodes 2 without --headless"),
        (("--headl", *SPREAD), 9410, "--headl is short for --headless"),
        (("--headless", "-r", "1", "-n", "2", "--master-addr", "http://a:1"), 9410, "'http://a:1' is no address"),
        (("--headless", "-r", "1", "-n", "2", "--master-addr", "a:29501"), 9410, "'a:29501' is no address"),
    ],
)
def test_what_cannot_be_is_a_usage_error(tiny: Any, extra: tuple[str, ...], port: int, part: str) -> None:
    with pytest.raises(UsageProblem, match=part):
        plan.build(tiny(), Options(extra=extra, metrics_port=port), {})


def test_a_fall_back_of_one_node_alone_is_refused(tiny: Any) -> None:
    for extra in (SPREAD, ("-dpa", LEADER)):
        options = Options(extra=extra, fallback_after_seconds=60.0)
        with pytest.raises(UsageProblem, match="the other nodes would wait for its 2-bit one"):
            plan.build(tiny(expected={"acceptance_per_draft_min": 2.0}), options, {})


def test_values_of_options() -> None:
    words = (
        "model",
        "--a",
        "1",
        "--b=2",
        "3",
        "-n",
        "-1",
        "--c",
        '{"x": "--y"}',
        "--a=4",
        "--flag",
        "--d.e",
        "5",
        "-r=6",
    )
    assert arguments.values(words) == {
        "a": "4",
        "b": "2",
        "nnodes": "-1",
        "c": '{"x": "--y"}',
        "flag": "",
        "d": "5",
        "node-rank": "6",
    }


def test_an_ipv6_leader_and_a_plan_that_says_so(tiny: Any) -> None:
    made = plan.build(tiny(), Options(extra=("--headless", "-n", "2", "-r", "1", "--master-addr", "fd00::1")), {})
    assert made.leader == "http://[fd00::1]:9410"
    assert "none, follows http://[fd00::1]:9410" in plan.to_text(made, {})
