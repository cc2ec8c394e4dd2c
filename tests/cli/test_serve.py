"""`cudaprefill serve` as a person or a process manager runs it."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO

import httpx
import pytest

from cudaprefill.cli.engine_flags import engine_config
from cudaprefill.cli.main import build_parser, main
from cudaprefill.cli.serve import server_config

COMMAND = [sys.executable, "-m", "cudaprefill.cli.main", "serve"]
PATIENCE = 120  # seconds that a start may take on a busy machine
SMALL = ["--port", "0", "--kv-cache-memory", "64MiB", "--served-model-name", "small", "other"]


@contextmanager
def serving(*arguments: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A server that is ready, and its URL."""
    process = subprocess.Popen(
        [*COMMAND, *SMALL, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=listen_to_ctrl_c,
    )
    try:
        line = stream(process.stdout).readline()
        assert line.startswith("cudaprefill: serving small on http://127.0.0.1:"), stream(process.stderr).read()
        yield process, line.split()[-1]
    finally:
        process.kill()
        process.wait()


def listen_to_ctrl_c() -> None:
    """In the child: a shell that starts the tests in the background has it ignored, and children inherit that."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def stream(pipe: IO[str] | None) -> IO[str]:
    assert pipe is not None
    return pipe


def test_it_says_where_it_serves_answers_and_ends_on_sigterm_with_status_0() -> None:
    with serving("--api-key", "secret") as (process, url):
        assert httpx.get(f"{url}/health").status_code == 200
        assert httpx.get(f"{url}/v1/models").status_code == 401
        models = httpx.get(f"{url}/v1/models", headers={"Authorization": "Bearer secret"}).json()["data"]
        assert [model["id"] for model in models] == ["small", "other"]
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE) == 0
        assert stream(process.stdout).read() == ""
        told = stream(process.stderr).read()
        assert "Traceback" not in told
        assert "secret" not in told


@pytest.mark.parametrize("way", ["ctrl-c", "closed standard input"])
def test_other_ways_to_end_it(way: str) -> None:
    with serving("--exit-with-stdin") as (process, url):
        assert httpx.get(f"{url}/health").status_code == 200
        if way == "ctrl-c":
            process.send_signal(signal.SIGINT)
        else:
            stream(process.stdin).close()
        assert process.wait(PATIENCE) == 0
        assert "Traceback" not in stream(process.stderr).read()


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["/one", "--model", "/two"], "the model is given twice: /one and --model /two"),
        (["--host", "0.0.0.0"], "--allow-unauthenticated"),
        (["--host", "no-such-host.invalid", "--api-key", "key"], "cannot listen on port 0 of no-such-host.invalid"),
        (["--api-key", ""], "api_keys must not hold an empty string"),
        (["--port", "70000"], "port must be between 0 and 65535, got 70000"),
        (["--shutdown-timeout", "nan"], "shutdown_timeout must be at least 0 seconds, got nan"),
        (["--max-body-size", "0"], "max_body_size must be at least 1, got 0"),
        (["--max-num-batched-tokens", "0"], "max_num_batched_tokens must be at least 1, got 0"),
    ],
)
def test_what_is_wrong_is_one_line_that_names_it(
    arguments: list[str], reason: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["serve", "--port", "0", *arguments]) == 1
    told = capsys.readouterr()
    (line,) = told.err.splitlines()
    assert line.startswith("cudaprefill: ")
    assert reason in line
    assert told.out == ""


def test_a_model_that_is_not_there_is_one_line_too() -> None:
    ending = subprocess.run([*COMMAND, "--port", "0", "/nowhere"], capture_output=True, text=True, timeout=PATIENCE)
    assert (ending.returncode, ending.stdout) == (1, "")
    assert ending.stderr == "cudaprefill: model '/nowhere' is neither a folder nor a GGUF file\n"


def test_a_port_in_use_is_told_before_the_model_is_loaded() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = str(other.getsockname()[1])
        ending = subprocess.run([*COMMAND, "--port", port], capture_output=True, text=True, timeout=PATIENCE)
    assert ending.returncode == 1
    assert ending.stderr == f"cudaprefill: cannot listen on port {port} of 127.0.0.1: Address already in use\n"


def test_the_baseline_line_of_vllm_is_understood() -> None:
    line = "--model M --block-size 16 --enable-prefix-caching --max-num-batched-tokens 8k --gpu-memory-utilization 0.90"
    for arguments in (line, line.replace("--model M", "M")):
        flags = build_parser().parse_args(["serve", *arguments.split()])
        flags.model = flags.model_argument or flags.model
        engine, server = engine_config(flags), server_config(flags)
        assert (engine.model, engine.block_size, engine.enable_prefix_caching) == ("M", 16, True)
        assert (engine.max_num_batched_tokens, engine.gpu_memory_utilization) == (8000, 0.90)
        assert (server.host, server.port, server.served_model_names) == ("127.0.0.1", 8000, ("M",))


def test_keys_come_from_flags_or_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDAPREFILL_API_KEY", "from-environment")
    parse = build_parser().parse_args
    assert server_config(parse(["serve"])).api_keys == ("from-environment",)
    assert server_config(parse(["serve", "--api-key", "a", "--api-key", "b"])).api_keys == ("a", "b")
    assert server_config(parse(["serve", "--host", "0.0.0.0"])).api_keys == ("from-environment",)
    monkeypatch.delenv("CUDAPREFILL_API_KEY")
    assert server_config(parse(["serve"])).api_keys == ()


def test_sizes_and_counts_may_have_units() -> None:
    flags = build_parser().parse_args(["serve", "--max-body-size", "2MiB", "--max-websocket-message-size", "64KiB"])
    config = server_config(flags)
    assert (config.max_body_size, config.max_websocket_message_size) == (2**21, 2**16)
