"""A server that is told to end admits nobody more, lets those in flight finish, and tells those that cannot."""

from __future__ import annotations

import threading
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from tests.server.asking import ANSWER, BOTH, CHAT, CHAT_FIELDS, COMPLETION_FIELDS, COMPLETIONS, ENDLESS
from tests.server.running import PATIENCE, RunningServer, events


def post_later(threads: ThreadPoolExecutor, server: RunningServer, fields: dict[str, Any]) -> Future[httpx.Response]:
    """An answer that has begun and waits for the engine's gate."""
    server.runner.gate.clear()
    in_flight = server.state.in_flight
    answer = threads.submit(lambda: server.client().post(COMPLETIONS, json=fields))
    server.wait_until(lambda: server.state.in_flight == in_flight + 1 and bool(server.state.engine._streams))
    return answer


@pytest.mark.parametrize("stream", [False, True])
def test_requests_in_flight_finish_and_new_ones_are_refused(stream: bool) -> None:
    with RunningServer() as server, ThreadPoolExecutor() as threads:
        answer = post_later(threads, server, {**COMPLETION_FIELDS, "stream": stream})
        server.stop()
        server.wait_until(lambda: server.state.draining)
        for path, fields in BOTH:
            refused = httpx.post(server.url + path, json=fields)
            assert (refused.status_code, refused.json()["error"]["code"]) == (503, "shutting_down")
            assert refused.headers["connection"] == "close"
            assert refused.headers["retry-after"]
        assert httpx.get(server.url + "/health").status_code == 503
        assert httpx.get(server.url + "/metrics").status_code == 200
        server.runner.gate.set()
        response = answer.result()
        if stream:
            assert "".join(event["choices"][0]["text"] for event in events(response)) == ANSWER
        else:
            assert response.json()["choices"][0]["text"] == ANSWER
        assert server.join() == 0


def test_what_does_not_finish_in_time_is_aborted_with_the_reason() -> None:
    config = {"shutdown_timeout": 0.05}
    with RunningServer(pace=0.01, config=config) as server, ThreadPoolExecutor() as threads:
        fields = {**COMPLETION_FIELDS, **ENDLESS}
        answers = [
            threads.submit(server.client().post, COMPLETIONS, json={**fields, "stream": s}) for s in (True, False)
        ]
        batch = threads.submit(server.client().post, COMPLETIONS, json={**fields, "prompt": [[1], [2]], "stream": True})
        server.wait_until(
            lambda: (
                [bool(stream.output.outputs[0].token_ids) for stream in [*server.state.engine._streams.values()]]
                == [True] * 4
            )
        )
        server.stop()
        streamed, whole, several = (answer.result() for answer in (*answers, batch))
        assert server.join() == 0
    for error in (events(streamed)[-1]["error"], whole.json()["error"], events(several)[-1]["error"]):
        assert (error["type"], error["code"]) == ("server_error", "shutting_down")
        assert "aborted: the server is shutting down" in error["message"]
    assert whole.status_code == 503
    assert events(streamed)[0]["choices"][0]["text"] != ""


def test_a_second_signal_gives_no_more_time() -> None:
    config = {"shutdown_timeout": 3600.0}
    with RunningServer(pace=0.01, config=config) as server, ThreadPoolExecutor() as threads:
        answer = threads.submit(server.client().post, COMPLETIONS, json={**COMPLETION_FIELDS, **ENDLESS})
        server.wait_until(lambda: server.runner.fake.steps > 2)
        server.stop()
        server.wait_until(lambda: server.state.draining)
        server.stop()
        assert answer.result().json()["error"]["code"] == "shutting_down"
        assert server.join() == 0


def test_a_request_that_is_still_tokenized_is_told_too() -> None:
    gate = threading.Event()
    with RunningServer(pace=0.01, config={"shutdown_timeout": 0.0}) as server, ThreadPoolExecutor() as threads:
        tokenizer = server.state.engine.tokenizer
        encode = tokenizer.encode

        def slow_encode(text: str, **options: Any) -> list[int]:
            assert gate.wait(PATIENCE)
            return encode(text, **options)

        tokenizer.encode = slow_encode  # type: ignore[method-assign]
        answer = threads.submit(server.client().post, COMPLETIONS, json={**COMPLETION_FIELDS, **ENDLESS})
        server.wait_until(lambda: server.state.in_flight == 1)
        server.stop()
        server.wait_until(lambda: server.state.draining)
        gate.set()
        assert answer.result().json()["error"]["code"] == "shutting_down"
        assert server.join() == 0


def test_an_idle_connection_does_not_hold_the_server_up() -> None:
    with RunningServer() as server, server.client() as client:
        assert client.post(CHAT, json=CHAT_FIELDS).status_code == 200  # the connection is kept alive
        server.stop()
        assert server.join() == 0
