"""An upstream that speaks vLLM's metrics (and can hang), an Engine with status files, and the exporter's answer as numbers."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from prometheus_client.parser import text_string_to_metric_families
from serving import profile_text

from launcher import exporter, plan, profiles
from launcher.engine import Engine
from launcher.scraper import Scraper
from launcher.states import Phase
from radiance import status
from radiance.status import HeadState, HeadStatus, Latency, Snapshot

BUCKETS = [20e-6, 1e-3, 5e-3]
WHO = {"engine": "0", "rank": "0", "head": "lm_head"}


def vllm_text(
    drafts: int = 208, positions: tuple[int, ...] = (194, 188, 180), running: int = 0, tokens: int = 770
) -> str:
    """What vLLM 0.32 answers, as far as it matters here, plus one metric that is only passed through."""
    where = 'engine="0",model_name="m"'
    counters = {
        "spec_decode_num_drafts": drafts,
        "spec_decode_num_draft_tokens": len(positions) * drafts,
        "spec_decode_num_accepted_tokens": sum(positions),
    }
    lines = []
    for name, number in counters.items():
        lines += [f"# HELP vllm:{name}_total Text.", f"# TYPE vllm:{name}_total counter"]
        lines += [f"vllm:{name}_total{{{where}}} {float(number)}"]
        lines += [f"# TYPE vllm:{name}_created gauge", f"vllm:{name}_created{{{where}}} 1.7e9"]
    lines.append("# TYPE vllm:spec_decode_num_accepted_tokens_per_pos_total counter")
    lines += [f'vllm:spec_decode_num_accepted_tokens_per_pos_total{{{where},position="{k}"}} {float(number)}'
              for k, number in enumerate(positions)]  # fmt: skip
    lines += ["# TYPE vllm:num_requests_running gauge", f"vllm:num_requests_running{{{where}}} {running}"]
    lines += ["# TYPE vllm:num_requests_waiting gauge", f"vllm:num_requests_waiting{{{where}}} 0"]
    lines += ["# TYPE vllm:kv_cache_usage_perc gauge", f"vllm:kv_cache_usage_perc{{{where}}} 0.25"]
    lines += ["# TYPE vllm:generation_tokens_total counter", f"vllm:generation_tokens_total{{{where}}} {tokens}"]
    lines += ["# TYPE vllm:iteration_tokens_total histogram"]
    lines += [
        f'vllm:iteration_tokens_total_bucket{{{where},le="+Inf"}} 5',
        f"vllm:iteration_tokens_total_count{{{where}}} 5",
    ]
    lines += [f"vllm:iteration_tokens_total_sum{{{where}}} {tokens}"]
    return "\n".join(lines) + "\n"


class Upstream(ThreadingHTTPServer):
    """`text` is the next answer; while `free` is not set it hangs after the request, as a stuck event loop does."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Upstream)
        self.text = vllm_text()
        self.free = threading.Event()
        self.free.set()
        self.asked = threading.Event()
        self.requests = 0

    @property
    def port(self) -> int:
        return int(self.server_address[1])


class _Upstream(BaseHTTPRequestHandler):
    server: Upstream

    def do_GET(self) -> None:
        self.server.requests += 1
        self.server.asked.set()
        self.server.free.wait()
        body = self.server.text.encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        pass


@contextmanager
def serving_upstream() -> Iterator[Upstream]:
    server = Upstream()
    threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
    try:
        yield server
    finally:
        server.free.set()
        server.shutdown()
        server.server_close()


def head(**change: Any) -> HeadStatus:
    fields: dict[str, Any] = {
        "name": "lm_head",
        "state": HeadState.ACTIVE,
        "since": 111.0,
        "n": 49152,
        "k": 576,
        "rerank": 32,
        "packed_bytes": 10_000_000,
        "peak_bytes": 20_000_000,
        "quantise_seconds": 1.5,
        "lazy_fired": 1,
        "lazy_fired_at": 222.0,
        "lazy_phase": "profile",
        "calls": 40,
        "rows": 50,
        "rescued_rows": 6,
        "stock_calls": {"rows": 3, "dtype": 4},
        "checked_rows": 30,
        "disagreed_rows": 2,
        "missed_rows": 1,
        "repacked": 2,
        "latency": Latency(BUCKETS, [1, 30, 7, 2], 0.25, "host"),
    }
    return HeadStatus(**(fields | change))


def make_engine(tmp_path: Path, port: int = 1, options: dict[str, Any] | None = None, **change: Any) -> Engine:
    (tmp_path / "tiny.yaml").write_text(profile_text(Path("/m"), **change))
    chosen = plan.Options(host="127.0.0.1", port=port, **(options or {}))
    engine = Engine(plan.build(profiles.read(tmp_path / "tiny.yaml"), chosen, {"HOME": "/h"}))
    engine.state_dir = tmp_path / "state"
    engine.state_dir.mkdir()
    return engine


def put(
    engine: Engine, /, *heads: HeadStatus, rank: int = 0, pid: int = 100, heartbeat: float = 333.0, **change: Any
) -> Path:
    """Write one worker's status file."""
    assert engine.state_dir is not None
    path = status.path_for(engine.state_dir, rank, pid)
    status.write(path, Snapshot(pid, rank, 1.0, heartbeat, "0.1.0", heads=list(heads), **change))
    return path


EXPECTED = {"acceptance_per_draft_min": 2.5, "draft_head_latency_seconds_max": 0.0005}


def serving_engine(tmp_path: Path, port: int, **options: Any) -> Engine:
    """Ready, with one worker and one head, thresholds in the profile."""
    engine = make_engine(tmp_path, port, options, expected=EXPECTED)
    engine.begin()
    put(engine, head())
    engine.enter(Phase.READY)
    engine.up = True
    return engine


Samples = dict[tuple[str, tuple[tuple[str, str], ...]], float]


def samples(engine: Engine, scraper: Scraper | None = None) -> Samples:
    """One reading of vLLM, one of the exporter; no series may be there twice."""
    (scraper or Scraper(engine)).once()
    return parsed(exporter.render(engine).decode())


def parsed(text: str) -> Samples:
    found: Samples = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            key = (sample.name, tuple(sorted(sample.labels.items())))
            assert key not in found, f"twice: {key}"
            found[key] = sample.value
    return found


def value(found: Samples, name: str, **labels: str) -> float:
    return found[(f"radiance_{name}", tuple(sorted(labels.items())))]


def names(found: Samples) -> set[str]:
    return {name for name, _ in found}
