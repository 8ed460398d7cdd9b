"""What counts as a draft head that does what was asked, and what readiness follows from it."""

from __future__ import annotations

from pathlib import Path

import pytest
from serving import profile_text

from launcher import plan, profiles
from launcher.engine import Engine, base_url, verdict
from launcher.states import Phase
from radiance import status
from radiance.settings import Mode
from radiance.status import HeadState, HeadStatus, Snapshot


def worker(rank: int, *states: HeadState, problem: str = "", started: float = 1.0) -> Snapshot:
    heads = [
        HeadStatus(f"head{i}", state, reason="why" if state is HeadState.DECLINED else "")
        for i, state in enumerate(states)
    ]
    return Snapshot(100 + rank, rank, started, started, "0", problem=problem, heads=heads)


@pytest.mark.parametrize(
    ("mode", "workers", "ok", "settled"),
    [
        (Mode.OFF, [], True, True),
        (Mode.ON, [], False, False),
        (Mode.ON, [worker(0)], False, False),
        (Mode.ON, [worker(0, HeadState.ACTIVE)], True, True),
        (Mode.SHADOW, [worker(0, HeadState.SHADOW)], True, True),
        (Mode.ON, [worker(0, HeadState.WAITING)], False, False),
        (Mode.ON, [worker(0, HeadState.DECLINED)], False, True),
        (Mode.ON, [worker(0, HeadState.OFF)], False, True),
        (Mode.ON, [worker(0, problem="seam missing")], False, True),
        # One rank or one head of many decides for the worse.
        (Mode.ON, [worker(0, HeadState.ACTIVE), worker(1, HeadState.DECLINED)], False, True),
        (Mode.ON, [worker(0, HeadState.ACTIVE, HeadState.WAITING)], False, False),
        (Mode.ON, [worker(0, HeadState.ACTIVE), worker(1, HeadState.ACTIVE)], True, True),
    ],
)
def test_verdict(mode: Mode, workers: list[Snapshot], ok: bool, settled: bool) -> None:
    found = verdict(mode, workers)
    assert (found.ok, found.settled) == (ok, settled)


def test_a_verdict_says_which_head_of_which_rank_and_why() -> None:
    found = verdict(Mode.ON, [worker(0, HeadState.ACTIVE), worker(1, HeadState.ACTIVE, HeadState.DECLINED)])
    assert found.reason == "rank 1 head1: declined (why)"


@pytest.fixture
def engine(tmp_path: Path) -> Engine:
    (tmp_path / "tiny.yaml").write_text(profile_text(Path("/m"), require="ready"))
    made = Engine(plan.build(profiles.read(tmp_path / "tiny.yaml"), plan.Options(), {"HOME": "/h"}))
    made.state_dir = tmp_path / "state"
    made.state_dir.mkdir()
    return made


def test_readiness_needs_phase_health_and_the_required_head(engine: Engine) -> None:
    assert engine.state_dir is not None
    path = status.path_for(engine.state_dir, 0, 100)
    status.write(path, worker(0, HeadState.ACTIVE))
    assert engine.readiness() == (False, "phase is fetching")
    engine.enter(Phase.READY)
    assert engine.readiness() == (False, "vLLM does not answer /health")
    engine.up = True
    assert engine.readiness() == (True, "ready")
    status.write(path, worker(0, HeadState.DECLINED))
    ready, reason = engine.readiness()
    assert not ready
    assert "declined (why)" in reason
    engine.enter(Phase.DRAINING)
    assert engine.readiness() == (False, "phase is draining")
    engine.enter(Phase.READY)
    assert engine.readiness() == (False, "phase is draining"), "a stop cannot be taken back"


def test_two_workers_of_one_rank_are_two_engines_and_the_worse_decides(engine: Engine) -> None:
    """Data parallel: each engine has a rank 0 of its own."""
    assert engine.state_dir is not None
    engine.enter(Phase.READY)
    engine.up = True
    status.write(engine.state_dir / f"a{status.SUFFIX}", worker(0, HeadState.ACTIVE, started=1.0))
    assert engine.readiness()[0]
    status.write(engine.state_dir / f"b{status.SUFFIX}", worker(0, HeadState.DECLINED, started=2.0))
    workers, errors = engine.workers()
    assert [(w.engine, w.snapshot.heads[0].state) for w in workers] == [(0, HeadState.ACTIVE), (1, HeadState.DECLINED)]
    assert errors == []
    assert not engine.readiness()[0]


def test_of_a_restarted_vllm_only_the_new_workers_are_judged(engine: Engine) -> None:
    assert engine.state_dir is not None
    engine.begin()
    assert engine.restarts == 0
    status.write(engine.state_dir / f"a{status.SUFFIX}", worker(0, HeadState.DECLINED, started=1.0))
    assert engine.verdict().word == "failed"
    engine.begin()
    assert engine.restarts == 1
    assert engine.workers()[0] == []
    assert engine.verdict().word == "pending"
    status.write(engine.state_dir / f"b{status.SUFFIX}", worker(0, HeadState.ACTIVE, started=2.0))
    assert engine.verdict().word == "ok"


@pytest.mark.parametrize(
    ("host", "url"),
    [
        ("0.0.0.0", "http://127.0.0.1:8"),
        ("::", "http://[::1]:8"),
        ("10.1.1.1", "http://10.1.1.1:8"),
        ("box", "http://box:8"),
    ],
)
def test_all_addresses_are_reached_over_loopback(host: str, url: str) -> None:
    assert base_url(host, 8) == url
