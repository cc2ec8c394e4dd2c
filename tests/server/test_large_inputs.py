"""Large inputs do not stall anybody: they are parsed and tokenized off the event loop, one at a time."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from tests.server.asking import COMPLETION_FIELDS, COMPLETIONS, TEXT
from tests.server.chat_server import ChatServer, Socket
from tests.server.running import PATIENCE, RunningServer

LARGE = TEXT * 30_000  # 180 kB, far more than the model takes


def test_a_stream_and_small_requests_go_on_while_large_prompts_are_tokenized() -> None:
    with RunningServer(pace=0.002) as server, server.client() as client, ThreadPoolExecutor() as threads:
        gate = threading.Event()
        running, most = [0], [0]
        tokenizer = server.state.engine.tokenizer
        encode = tokenizer.encode

        def slow_encode(text: str, **options: Any) -> list[int]:
            if text == LARGE:
                running[0] += 1
                most[0] = max(most[0], running[0])
                assert gate.wait(PATIENCE)
                running[0] -= 1
            return encode(text, **options)

        tokenizer.encode = slow_encode  # type: ignore[method-assign]
        with client.stream(
            "POST", COMPLETIONS, json={**COMPLETION_FIELDS, "stream": True, "max_tokens": 100}
        ) as stream:
            lines = stream.iter_lines()
            next(lines)
            refused = [
                threads.submit(server.client().post, COMPLETIONS, json={**COMPLETION_FIELDS, "prompt": LARGE})
                for _ in range(4)
            ]
            server.wait_until(lambda: running[0] == 1 and server.state.in_flight == 5)
            with server.client() as other:
                assert other.post(COMPLETIONS, json=COMPLETION_FIELDS).status_code == 200
            assert [line for line in lines if line][-1] == "data: [DONE]"
            gate.set()
        for response in refused:
            error = response.result().json()["error"]
            assert (error["param"], response.result().status_code) == ("prompt", 400)
            assert "180000 tokens" in error["message"]
        assert most == [1]


def test_large_inputs_of_responses_wait_for_each_other_and_for_nobody_else() -> None:
    large = "a" * 200_000
    with ChatServer() as server, Socket(server) as socket, server.client() as client, ThreadPoolExecutor() as threads:
        gate = threading.Event()
        running, most = [0], [0]
        tokenizer = server.state.engine.tokenizer
        encode_chat = tokenizer.encode_chat

        def slow_encode_chat(messages: Any, **options: Any) -> list[int]:
            if messages[-1]["content"] == large:
                running[0] += 1
                most[0] = max(most[0], running[0])
                assert gate.wait(PATIENCE)
                running[0] -= 1
            return encode_chat(messages, **options)

        tokenizer.encode_chat = slow_encode_chat  # type: ignore[method-assign]
        lanes = [f"lane-{number}" for number in range(8)]
        for lane in lanes:
            socket.create(large, stream_id=lane)
        refused = [threads.submit(client.post, "/v1/responses", json={"input": large}) for _ in range(8)]
        server.wait_until(lambda: running[0] == 1 and server.state.in_flight > 2)
        small = client.post("/v1/responses", json={"input": "hello", "max_output_tokens": 2, "ignore_eos": True})
        assert small.json()["status"] == "incomplete"
        gate.set()
        for response in refused:
            assert (response.result().status_code, response.result().json()["error"]["param"]) == (400, "input")
        assert {socket.receive()["stream_id"] for _ in lanes} == set(lanes)
        assert most == [1]


def test_tokenizing_lets_other_threads_run() -> None:
    """A tokenizer that kept the interpreter's lock would stop the engine and every socket for as long as it takes."""
    with RunningServer() as server:
        tokenizer = server.state.engine.tokenizer
        done = threading.Event()
        ticks = 0

        def encode() -> None:
            for _ in range(3):
                tokenizer.encode(LARGE)
            done.set()

        thread = threading.Thread(target=encode)
        thread.start()
        while not done.wait(0.0005):
            ticks += 1
        thread.join()
    assert ticks > 30
