"""What vLLM prints: whole lines whatever the pieces, without secrets, in one form; phases noticed."""

from __future__ import annotations

import io
import json
import os
import re

import pytest

from launcher.logs import Form
from launcher.relay import LONGEST_LINE, TAIL_LINES, Relay
from launcher.secrets import Redactor
from launcher.states import Phase

SECRET = "hf_" + "Ab1/" * 8


def relayed(
    *pieces: bytes, form: Form = Form.TEXT, sink: io.BytesIO | None = None
) -> tuple[bytes, list[Phase], list[str]]:
    """Each piece is a write of its own, read before the next one."""
    read, write = os.pipe()
    out, phases = sink or io.BytesIO(), []
    relay = Relay(read, out, Redactor({"HF_TOKEN": SECRET}), form, phases.append)
    relay.start()
    for piece in pieces:
        os.write(write, piece)
    os.close(write)
    relay.join(60)
    os.close(read)
    return out.getvalue(), phases, list(relay.tail)


def test_text_passes_as_it_is() -> None:
    text = "INFO one\n\nzwei ä\r 10%\r 20%\n".encode() + b"\xff\xfe no text\nlast without an end"
    assert relayed(text)[0] == text + b"\n"


def test_a_secret_is_blotted_out_also_when_it_comes_in_pieces_and_in_json() -> None:
    half = len(SECRET) // 2
    got, _, tail = relayed(
        f"a {SECRET} b {SECRET}".encode(), b"\n", SECRET[:half].encode(), f"{SECRET[half:]}\r".encode(), SECRET.encode()
    )
    assert got == b"a *** b ***\n***\r***\n"
    assert SECRET not in "".join(tail)


def test_json_has_one_record_for_each_line_and_keeps_records() -> None:
    record = {"timestamp": "t", "level": "INFO", "logger": "vllm", "process": 3, "message": "hello"}
    lines = [json.dumps(record), "plain ä", '{"a": 1}', "{broken", "", " 10%\r 20%", f'say "{SECRET}"']
    got = relayed("\n".join(lines).encode() + b"\n", form=Form.JSON)[0].decode()
    found = [json.loads(line) for line in got.splitlines()]
    assert found[0] == record
    assert [each["message"] for each in found[1:]] == ["plain ä", '{"a": 1}', "{broken", "10%", "20%", 'say "***"']
    for each in found:
        assert {"timestamp", "level", "logger", "process", "message"} == each.keys()


def test_the_phases_of_a_start_and_back_from_packing() -> None:
    lines = [
        "(EngineCore pid=3) INFO Starting to load model /m...",
        "INFO Radiance draft head lm_head (M): packing begins",
        "INFO Radiance draft head lm_head: 248320 rows of [248320, 5120] torch.bfloat16 -> 2 bits, 310.0 MiB, 0.70 s, rerank 32",
        "INFO Model loading took 51.2 GiB memory and 30.0 seconds",
        "INFO Radiance draft head lm_head (M): packing begins",
        "WARNING Radiance draft head lm_head (M): DECLINED (packing_failed), phase profile",
        "Capturing CUDA graphs (FULL):   0%|",
    ]
    wanted = ["loading", "packing", "loading", "capturing", "packing", "capturing", "capturing"]
    assert relayed("\n".join(lines).encode())[1] == wanted


def test_our_own_polls_are_dropped_and_nobody_elses() -> None:
    ours = [b'INFO uvicorn.access[1] 127.0.0.1:3 - "GET /health HTTP/1.1" 200\n',
            b'{"message": "127.0.0.1:3 - \\"GET /metrics HTTP/1.1\\" 200", "level": "INFO"}\n']  # fmt: skip
    theirs = [b'10.0.0.9:3 - "GET /health HTTP/1.1" 200\n', b'127.0.0.1:3 - "GET /health HTTP/1.1" 503\n',
              b'127.0.0.1:3 - "POST /v1/completions HTTP/1.1" 200\n']  # fmt: skip
    assert relayed(*ours, *theirs)[0] == b"".join(theirs)


def test_the_last_lines_are_kept_and_no_line_is_endless() -> None:
    got, _, tail = relayed(*(f"line {i}\n".encode() for i in range(TAIL_LINES + 5)))
    assert tail[0] == "line 5"
    assert len(tail) == TAIL_LINES
    got, _, _ = relayed(*[b"x" * 65536] * (LONGEST_LINE // 65536 + 2))
    assert len(re.findall(rb"x", got)) == LONGEST_LINE + 2 * 65536


def test_a_reader_that_is_gone_does_not_stop_vllm() -> None:
    closed = io.BytesIO()
    closed.close()
    with pytest.raises(ValueError, match="closed"):
        relayed(b"one\n", b"two\n", sink=closed)  # getvalue() of this test; the relay itself read to the end


def test_a_line_that_cannot_be_handled_is_lost_alone(caplog: pytest.LogCaptureFixture) -> None:
    read, write = os.pipe()

    def broken(text: str) -> str:
        if text == "bad":
            raise ValueError("cannot")
        return text

    out = io.BytesIO()
    relay = Relay(read, out, broken, Form.TEXT, lambda phase: None)
    os.write(write, b"one\nbad\ntwo\n")
    os.close(write)
    relay.run()
    os.close(read)
    assert out.getvalue() == b"one\ntwo\n"
    assert "was lost" in caplog.text
