"""A client that has gone costs nothing more: its request is aborted wherever it is."""

from __future__ import annotations

import asyncio
import socket
import struct
import threading
from collections.abc import AsyncIterator
from typing import Any

import pytest
from starlette.types import Message

from cudaprefill.sampling_params import SamplingParams
from cudaprefill.server.generation import Generation
from cudaprefill.server.sse import EventStream
from tests.server.asking import ANSWER, BOTH, CHAT, CHAT_FIELDS, COMPLETION_FIELDS, COMPLETIONS, ENDLESS, TEXT
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
@pytest.mark.parametrize("num_more", [1, 3])
def test_with_more_requests_sent_ahead_on_the_same_connection(stream: bool, num_more: int) -> None:
    with RunningServer(pace=PACE) as server:
        connection = server.post_raw(COMPLETIONS, {**COMPLETION_FIELDS, **ENDLESS, "stream": stream})
        connection.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n" * num_more)
        server.wait_until(lambda: server.runner.fake.steps > 5)
        drop(connection, reset=True)
        assert steps_after(server) < 50


def test_requests_that_are_sent_ahead_are_answered_in_order(server: RunningServer) -> None:
    number = 40  # more than are read at once
    connection = server.connect()
    for place in range(number):
        connection.sendall(f"GET /v1/models/m{place} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
    received = b""
    while received.count(b"HTTP/1.1 404") < number or not received.endswith(b"}"):
        received += connection.recv(65536)
    places = [received.index(f"'m{place}'".encode()) for place in range(number)]
    assert places == sorted(places)
    connection.close()


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
    async def session(server: RunningServer) -> list[bytes]:
        """An answer to a client whose connection takes nothing more until the engine has done all it wants to."""
        engine, sent = server.state.engine, []
        stream = await engine.generate(TEXT, SamplingParams(temperature=0, max_tokens=500, ignore_eos=True))
        generation = Generation(server.state, [stream])

        async def texts() -> AsyncIterator[bytes]:
            async for _, delta in await generation.started():
                yield delta.text.encode()

        async def send(message: Message) -> None:
            if message["type"] == "http.response.body":
                sent.append(message["body"])
                while await engine.call(lambda engine: engine.has_work()):
                    await asyncio.sleep(0.001)

        async def receive() -> Message:
            return await asyncio.get_running_loop().create_future()  # type: ignore[no-any-return]

        await EventStream(texts(), generation.abort)({"type": "http"}, receive, send)
        return sent

    with RunningServer(config={"max_unread_output": 1000}) as server:
        text, error, end = server.await_(session(server))
        assert server.runner.fake.steps < 500
    assert ANSWER.startswith(text.decode())
    assert b"the limit is 1000" in error
    assert b'"code": "slow_reader"' in error
    assert end == b"data: [DONE]\n\n"


def test_a_slow_reader_gets_what_it_missed_in_one_event(server: RunningServer) -> None:
    async def session() -> list[str]:
        engine = server.state.engine
        stream = await engine.generate(TEXT, SamplingParams(temperature=0, max_tokens=8, ignore_eos=True))
        texts = []
        async for _, delta in await Generation(server.state, [stream]).started():
            texts.append(delta.text)
            while await engine.call(lambda engine: engine.has_work()):
                await asyncio.sleep(0.001)
        return texts

    texts = server.await_(session())
    assert "".join(texts) == ANSWER
    assert len(texts) <= 2
