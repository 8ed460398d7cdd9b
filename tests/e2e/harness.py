"""Starts `radiance serve` on a real CPU vLLM, sends it prompts, and keeps all that it said. Loopback only."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import yaml
from prometheus_client.parser import text_string_to_metric_families

from tests import processes
from tests.processes import free_port, until

BIN = Path(sys.executable).parent
HERE = Path(__file__).parent
PROMPTS = [
    "def main():",
    "import os\n",
    "class Foo:",
    "return x + 1",
    "for i in range(",
    "while True:",
    "print(",
    "if a:\n",
]
TOKENS = 64
START_LIMIT = 400.0

#: `vllm serve` on two cores in one process: 40 s to ready (notes of the measurement: OMP_NUM_THREADS=1 matters ten-fold)
SIZES = {"max_model_len": 2048, "max_num_seqs": 8, "kv_cache_memory_bytes": 536870912}
ARGS = {
    "enforce-eager": True,
    "enable-prefix-caching": False,  # with it, hybrid models call a Triton kernel that a CPU does not have
    "distributed-executor-backend": "uni",
}
ENV = {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "OMP_NUM_THREADS": "1", "VLLM_HOST_IP": "127.0.0.1"}


@dataclass
class Run:
    """What one server did. `tokens` per prompt; `metrics` the launcher's, `engine` vLLM's own."""

    exit_code: int
    log: str
    tokens: list[list[int]] = field(default_factory=list)
    status: dict[str, Any] = field(default_factory=dict)
    metrics: list[Any] = field(default_factory=list)
    engine: list[Any] = field(default_factory=list)
    #: vLLM's metrics after the warm-up, whose second half is sampled, and before the first prompt
    warm: list[Any] = field(default_factory=list)

    def value(self, name: str, **labels: str) -> float:
        """The sum of the launcher's samples of that name whose labels include these."""
        return _sum(self.metrics, name, labels)

    def vllm(self, name: str, **labels: str) -> float:
        return _sum(self.engine, name, labels)

    @property
    def accepted(self) -> int:
        """Accepted tokens of the prompts."""
        return self._of_prompts("vllm:spec_decode_num_accepted_tokens_total")

    @property
    def drafts(self) -> int:
        """Drafts of the prompts."""
        return self._of_prompts("vllm:spec_decode_num_drafts_total")

    def _of_prompts(self, name: str) -> int:
        return int(_sum(self.engine, name, {}) - _sum(self.warm, name, {}))


def _sum(families: list[Any], name: str, labels: dict[str, str]) -> float:
    found = [s.value for f in families for s in f.samples if s.name == name and labels.items() <= s.labels.items()]
    assert found, f"no sample {name} {labels}"
    return float(sum(found))


def write_profile(folder: Path, name: str, model: Path, speculative: dict[str, Any] | None, **fields: Any) -> None:
    profile: dict[str, Any] = {
        "schema_version": 1,
        "name": name,
        "summary": "constructed checkpoint, end-to-end test",
        "model": {"path": str(model)},
        "served_name": "tiny",
        **SIZES,
        "args": ARGS,
        "env": ENV,
        "startup_budget_seconds": int(START_LIMIT),
        "verified": "no",
        **fields,
    }
    if speculative:
        profile["speculative"] = speculative
    (folder / f"{name}.yaml").write_text(yaml.safe_dump(profile))


def serve(folder: Path, name: str, sabotage: str = "", **environment: str) -> Run:
    """Run profile `name` of `folder`, ask all prompts one after the other, scrape, stop with SIGTERM.

    `sabotage` "vocab" is none: it sets RADIANCE_DRAFT_VOCAB to the file vocab.txt of the folder.
    """
    if sabotage == "vocab":
        sabotage, environment = "", {"RADIANCE_DRAFT_VOCAB": str(folder / "vocab.txt")}
    api, metrics = free_port(), free_port()
    env = {**os.environ, "PATH": f"{BIN}:{os.environ['PATH']}", **environment}
    if sabotage:
        env |= {"SABOTAGE": sabotage, "PYTHONPATH": str(HERE / "sabotage")}
    log = folder / f"{name}{'-' + sabotage if sabotage else ''}.log"
    command = [BIN / "radiance", "serve", "--profile", name, "--profiles-dir", folder, "--host", "127.0.0.1"]
    process = processes.start([*command, "--port", str(api), "--metrics-port", str(metrics)], log, env=env)
    try:
        run = _use(process, f"http://127.0.0.1:{api}", f"http://127.0.0.1:{metrics}")
    finally:
        code = processes.stop(process)
    run.exit_code, run.log = code, log.read_text()
    return run


def _use(process: subprocess.Popen[bytes], api: str, exporter: str) -> Run:
    with httpx.Client(timeout=120.0, trust_env=False) as http:
        deadline = time.monotonic() + START_LIMIT
        while not _ready(http, exporter):
            if process.poll() is not None or time.monotonic() > deadline:
                return Run(-1, "")
            time.sleep(0.5)
        run = Run(0, "")
        _settle(http, exporter)
        run.warm = list(text_string_to_metric_families(http.get(f"{api}/metrics").text))
        for prompt in PROMPTS:
            answer = http.post(
                f"{api}/v1/completions",
                json={
                    "model": "tiny",
                    "prompt": prompt,
                    "max_tokens": TOKENS,
                    "temperature": 0,
                    "return_token_ids": True,
                },
            )
            answer.raise_for_status()
            run.tokens.append(answer.json()["choices"][0]["token_ids"])
        _settle(http, exporter)
        run.metrics = list(text_string_to_metric_families(http.get(f"{exporter}/metrics").text))
        run.engine = list(text_string_to_metric_families(http.get(f"{api}/metrics").text))
        run.status = json.loads(http.get(f"{exporter}/status").text)
    return run


def _settle(http: httpx.Client, exporter: str) -> None:
    """Until every worker (stock vLLM has none of ours) has written its state a second after the last answer: then its counters
    have all of it, and vLLM's too, which come with the next step's output."""
    since = time.time() + 1

    def written() -> bool:
        families = text_string_to_metric_families(http.get(f"{exporter}/metrics").text)
        samples = [sample for family in families for sample in family.samples]
        beats = [s.value for s in samples if s.name == "radiance_worker_heartbeat_timestamp_seconds"]
        return time.time() > since and all(beat > since for beat in beats)

    until(written, "every worker has written its state since the last answer")


def _ready(http: httpx.Client, exporter: str) -> bool:
    try:
        return http.get(f"{exporter}/readyz").status_code == 200
    except httpx.HTTPError:
        return False
