"""A client that has gone costs nothing more: its request is aborted wherever it is."""

from __future__ import annotations

import socket
import struct
import threading
from typing import Any

import pytest

from tests.server.asking import BOTH, CHAT, CHAT_FIELDS, COMPLETION_FIELDS, COMPLETIONS, ENDLESS, TEXT
from tests.server.running import PATIENCE, RunningServer

PACE = 0.004  # seconds a step: an endless request takes two seconds


def drop(connection: socket.socket, *, reset: bool) -> None:
    """Closes a connection, politely or as a crash would."""
    if reset:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    connection.close()


def read_events(connection: socket.socket, count: int) -> None:
    received = b""
    while received.count(b"data: ") < count:
        piece = connection.recv(65536)
        assert piece, received
        received += piece


def steps_after(server: RunningServer) -> int:
    """Steps that the engine still makes from now on."""
    before: int = server.runner.fake.steps
    server.wait_until_idle()
    return int(server.runner.fake.steps) - before


@pytest.mark.parametrize("reset", [False, True])
@pytest.mark.parametrize(("path", "fields"), BOTH)
def test_in_the_middle_of_a_stream(path: str, fields: dict[str, Any], reset: bool) -> None:
    with RunningServer(pace=PACE) as server:
        connection = server.post_raw(path, {**fields, **ENDLESS, "stream": True})
        read_events(connection, 5)
        drop(connection, reset=reset)
        assert steps_after(server) < 50
        with server.client() as client:
            assert client.post(path, json=fields).status_code == 200


@pytest.mark.parametrize(("path", "fields"), BOTH)
def test_while_waiting_for_a_whole_answer(path: str, fields: dict[str, Any]) -> None:
    with RunningServer(pace=PACE) as server:
        connection = server.post_raw(path, {**fields, **ENDLESS})
        server.wait_until(lambda: server.runner.fake.steps > 3)
        drop(connection, reset=False)
        assert steps_after(server) < 50


@pytest.mark.parametrize("stream", [False, True])
def test_in_a_long_prefill(stream: bool) -> None:
    with RunningServer(pace=PACE, budget=16) as server:
        prompt = [{"role": "user", "content": TEXT * 80}]  # 30 steps
        connection = server.post_raw(CHAT, {**CHAT_FIELDS, "messages": prompt, "stream": stream})
        server.wait_until(lambda: server.runner.fake.steps > 2)
        drop(connection, reset=False)
        assert steps_after(server) < 20


@pytest.mark.parametrize("stream", [False, True])
def test_while_queued(stream: bool) -> None:
    with RunningServer(pace=PACE, max_num_seqs=1) as server:
        running = server.post_raw(COMPLETIONS, {**COMPLETION_FIELDS, "max_tokens": 60, "stream": True})
        read_events(running, 1)
        queued = server.post_raw(COMPLETIONS, {**COMPLETION_FIELDS, **ENDLESS, "stream": stream})
        server.wait_until(lambda: server.in_engine(lambda engine: engine.scheduler.num_waiting) == 1)
        drop(queued, reset=False)
        server.wait_until(lambda: server.in_engine(lambda engine: engine.scheduler.num_waiting) == 0)
        while b"[DONE]" not in running.recv(65536):  # the one that runs is not touched
            pass
        running.close()


@pytest.mark.parametrize("stream", [False, True])
def test_while_its_prompt_is_tokenized(stream: bool) -> None:
    with RunningServer() as server:
        gate, entered = threading.Event(), threading.Event()
        tokenizer = server.state.engine.tokenizer
        encode = tokenizer.encode

        def slow_encode(text: str, **options: Any) -> list[int]:
            entered.set()
            assert gate.wait(PATIENCE)
            return encode(text, **options)

        tokenizer.encode = slow_encode  # type: ignore[method-assign]
        connection = server.post_raw(COMPLETIONS, {**COMPLETION_FIELDS, "stream": stream})
        assert entered.wait(PATIENCE)
        drop(connection, reset=False)
        server.wait_until(lambda: server.state.in_flight == 0)
        gate.set()
        server.wait_until_idle()
        assert server.runner.fake.steps == 0  # the engine never heard of it


def test_before_the_body_is_complete(server: RunningServer) -> None:
    connection = server.connect()
    connection.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n{")
    server.wait_until(lambda: server.state.in_flight == 1)
    drop(connection, reset=False)
    server.wait_until(lambda: server.state.in_flight == 0)


def test_one_of_several_prompts_does_not_outlive_its_client() -> None:
    with RunningServer(pace=PACE) as server:
        fields = {**COMPLETION_FIELDS, **ENDLESS, "prompt": [TEXT, TEXT + "A", TEXT + "B"], "stream": True}
        connection = server.post_raw(COMPLETIONS, fields)
        read_events(connection, 6)
        drop(connection, reset=True)
        assert steps_after(server) < 50


def test_a_reader_that_stops_reading_is_aborted_when_too_much_waits_for_it() -> None:
    with RunningServer(config={"max_unread_output": 100_000}) as server:
        # More than the buffers of the system take.
        connection = server.post_raw(
            COMPLETIONS, {**COMPLETION_FIELDS, **ENDLESS, "n": 16, "stream": True, "logprobs": 6}
        )
        server.wait_until(lambda: server.runner.fake.steps > 0)
        server.wait_until(lambda: not server.in_engine(lambda engine: engine.has_work()))
        assert server.runner.fake.steps < 500
        received = b""
        while b"[DONE]" not in received[-100:]:
            piece = connection.recv(1 << 20)
            assert piece
            received += piece
        connection.close()
    assert b'"code": "slow_reader"' in received[-1000:]
