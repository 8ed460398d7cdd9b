"""The CPU image that `make image` built, for real: strict container, completion, scrape, compiler, drain, layers.

Serial and on one server, in the order of a server's life: the last test of that server stops it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from threading import Thread

import container
import pytest
from container import CACHE, IMAGE, Server, podman, serving
from stack import watching
from test_compose import SERVER_VARIABLES

from tests.processes import until

pytestmark = pytest.mark.image
MODEL = "smollm2-135m-instruct"
#: bytes: 3.5 GB of wheels, 0.5 GB of Debian with the compiler, 0.27 GB of model. A build that needs more must say why here.
BUDGET = 4_500_000_000
#: what Debian's python3-venv makes environments from
DEBIANS = "usr/share/python-wheels/"
#: bytes that a change of our own code may cost a node that has the layers below
PLUGIN_BUDGET = 5_000_000


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    """Started with every variable that compose passes on, each empty; seen once before it is ready."""
    empty = [word for name in SERVER_VARIABLES for word in ("--env", f"{name}=")]
    with serving(*empty) as started:
        early = started.execute("radiance", "health", check=False)
        assert early.returncode == 1, f"ready at once? {early.stdout}"
        started.wait_ready()
        yield started


def test_it_is_nobody_and_can_do_nothing(server: Server) -> None:
    assert server.execute("id").stdout.startswith("uid=12345(12345) gid=0(root) groups=0(root)")
    refused = server.execute("touch", "/home/radiance/x", check=False)  # group 0 may write there, but for --read-only
    assert "Read-only file system" in refused.stderr
    status = server.execute("cat", "/proc/1/status").stdout
    assert re.search(r"^CapBnd:\s+0+$", status, re.M)
    assert re.search(r"^NoNewPrivs:\s+1$", status, re.M)
    assert server.execute("cat", "/proc/1/comm").stdout == "tini\n"


def test_a_completion_over_the_published_port(server: Server) -> None:
    asked = {"model": MODEL, "prompt": "The capital of France is", "max_tokens": 8, "temperature": 0}
    answer = server.api.post("/v1/completions", json=asked).json()
    assert "Paris" in answer["choices"][0]["text"]
    assert answer["usage"]["completion_tokens"] == 8
    head = server.status()["fast_draft"]
    assert head["mode"] == "on", head
    assert "active" in json.dumps(head).lower(), head


def test_docker_sees_it_healthy(server: Server) -> None:
    done = podman("healthcheck", "run", server.name, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    declared = container.inspect_image()["Healthcheck"]
    assert declared["Test"] == ["CMD", "radiance", "health"]


def test_a_real_prometheus_scrapes_it(server: Server, tmp_path: Path) -> None:
    with watching(tmp_path, server.metrics_port) as prometheus:
        until(lambda: prometheus.query("radiance_ready == 1"), "radiance_ready reaches Prometheus")
        assert prometheus.value("radiance_drafts_total") > 0
        assert prometheus.value("radiance_accepted_tokens_total") > 0
        assert prometheus.value("sum(radiance_draft_head_packed_bytes)") > 0


def test_a_c_module_compiles_and_loads(server: Server) -> None:
    """What Triton does for every kernel's launcher: Python.h, gcc, a shared object in the cache folder."""
    program = f"""
import pathlib, subprocess, sys, sysconfig
folder = pathlib.Path("{CACHE}/probe"); folder.mkdir()
(folder / "probe.c").write_text('''
#include <Python.h>
static PyObject *answer(PyObject *self, PyObject *args) {{ return PyLong_FromLong(42); }}
static PyMethodDef methods[] = {{{{"answer", answer, METH_NOARGS, ""}}, {{NULL, NULL, 0, NULL}}}};
static struct PyModuleDef module = {{PyModuleDef_HEAD_INIT, "probe", NULL, -1, methods}};
PyMODINIT_FUNC PyInit_probe(void) {{ return PyModule_Create(&module); }}
''')
subprocess.run(["gcc", "-shared", "-fPIC", "-O2", f"-I{{sysconfig.get_paths()['include']}}",
                str(folder / "probe.c"), "-o", str(folder / "probe.so")], check=True)
sys.path.insert(0, str(folder))
import probe
print(probe.answer())
"""
    assert server.execute("python", "-", given=program).stdout.strip() == "42"


def test_a_triton_kernel_runs_in_its_interpreter(server: Server) -> None:
    program = """
import torch, triton, triton.language as tl

@triton.jit
def double(x, y, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + at, 2 * tl.load(x + at, mask=at < n), mask=at < n)

x = torch.arange(100, dtype=torch.int32)
y = torch.zeros_like(x)
double[(4,)](x, y, 100, BLOCK=32)
assert (y == 2 * x).all(), y
print("doubled")
"""
    server.execute("sh", "-c", f"cat > {CACHE}/double.py", given=program)
    done = server.execute("env", "TRITON_INTERPRET=1", "python", f"{CACHE}/double.py")
    assert done.stdout.strip() == "doubled"


def test_a_stop_lets_running_requests_end_and_exits_0(server: Server) -> None:
    """Streaming over the published port while SIGTERM arrives: every token comes, then the container ends by itself."""
    asked = {"model": MODEL, "prompt": "Once upon a time", "max_tokens": 96, "temperature": 0,
             "ignore_eos": True, "stream": True, "stream_options": {"include_usage": True}}  # fmt: skip
    usage: list[int] = []
    stopping: list[Thread] = []
    with server.api.stream("POST", "/v1/completions", json=asked) as answer:
        assert answer.status_code == 200
        for line in answer.iter_lines():
            if not stopping:
                stopping.append(Thread(target=podman, args=("kill", "--signal", "TERM", server.name)))
                stopping[0].start()
            if line.startswith("data: {") and (found := json.loads(line[6:]).get("usage")):
                usage.append(found["completion_tokens"])
    stopping[0].join()
    assert usage[-1] == 96
    assert podman("wait", server.name).stdout.strip() == "0", server.logs()[-3000:]


def test_a_mistake_has_its_exit_code() -> None:
    done = container.once("--profile", "no-such-profile", check=False)
    assert done.returncode == 2
    assert "smollm2-cpu" in done.stderr


def test_labels_say_what_is_inside() -> None:
    labels = container.inspect_image()["Labels"]
    said = dict(line.split()[:2] for line in container.once("version").stdout.splitlines())
    assert said["radiance-vllm"] == labels["org.opencontainers.image.version"]
    assert said["vllm"] == labels["radiance.vllm.version"]
    assert labels["radiance.purpose"] == "tests"
    assert labels["radiance.accelerator"] == "cpu"
    assert re.fullmatch(r"[0-9a-f]{40}", labels["org.opencontainers.image.revision"])


def test_a_build_ends_where_image_and_labels_differ() -> None:
    """The check that every build runs last, asked for what this image is not."""
    command = ("/opt/radiance/share/check.py", "--vllm", "0.31.0", "--plugin", "9.9.9", "--accelerator", "rocm")
    strict = ("run", "--rm", "--network", "none", "--entrypoint", "python", *container.STRICT, IMAGE)
    done = podman(*strict, *command, check=False)
    assert done.returncode == 1
    for said in ("says vLLM 0.31.0, installed is 0.32.0+cpu", "says plugin 9.9.9", "is not built for rocm"):
        assert said in done.stderr


def test_the_model_came_with_its_licence() -> None:
    done = podman("run", "--rm", "--network", "none", "--entrypoint", "sh", *container.STRICT, IMAGE, "-c",
                  'head -3 "$SMOLLM2_FOLDER/LICENSE"')  # fmt: skip
    assert "Apache License" in done.stdout


def test_size_and_layers(capsys: pytest.CaptureFixture[str]) -> None:
    image = container.inspect_image()
    steps = [
        (step["size"], step["CreatedBy"]) for step in json.loads(podman("history", "--format", "json", IMAGE).stdout)
    ]
    with capsys.disabled():
        print(f"\n{IMAGE}: {image['Size'] / 1e9:.2f} GB of {BUDGET / 1e9:.2f} GB; largest layers:")
        for size, what in sorted(steps, reverse=True)[:5]:
            print(f"  {size / 1e6:8.1f} MB  {' '.join(what.split())[:110]}")
    assert image["Size"] <= BUDGET
    (plugin,) = [at for at, (_, what) in enumerate(steps) if "/opt/radiance/dist/*.whl" in what]
    ours = [size for size, what in steps[: plugin + 2]]  # history is newest first; the wheel's COPY comes right before
    assert sum(ours) <= PLUGIN_BUDGET, steps[: plugin + 2]


def test_no_cache_and_no_secret_in_any_layer() -> None:
    """A file that a later layer deletes is still shipped, so every layer is looked at by itself."""
    image = container.inspect_image()
    found = []
    for folder, _ in container.layers(image):
        for path in folder.rglob("*"):
            name = path.relative_to(folder).as_posix()
            cached = name.startswith(("root/.cache/", "var/lib/apt/lists/", "var/cache/apt/archives/", "tmp/"))
            wheel = name.endswith(".whl") and not name.startswith("opt/radiance/dist/") and not name.startswith(DEBIANS)
            secret = path.name in (".env", ".netrc", ".pypirc", "pip.conf", "id_rsa", ".git", ".git-credentials")
            if (cached and path.is_file() and path.name != "lock") or wheel or secret:
                found.append(name)
    assert not found
    names = [word.partition("=")[0] for word in image["Config"]["Env"]]
    assert not [name for name in names if re.search(r"TOKEN|PASSWORD|SECRET|API_KEY", name)]
