"""`/v1/responses` over HTTP: whole or as server-sent events, fetched, cancelled and deleted."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.server.chat_server import ChatServer, Socket, chat_server

URL = "/v1/responses"
ASK: dict[str, Any] = {"input": "hello", "temperature": 0, "max_output_tokens": 12, "ignore_eos": True}
ENDLESS = ASK | {"max_output_tokens": 400}


@pytest.fixture
def server() -> Iterator[ChatServer]:
    yield from chat_server()


@pytest.fixture
def client(server: ChatServer) -> Iterator[httpx.Client]:
    with server.client() as client:
        yield client


def events(lines: Iterator[str]) -> Iterator[dict[str, Any]]:
    for line in lines:
        if line.startswith("event: "):
            kind = line.removeprefix("event: ")
            event = json.loads(next(lines).removeprefix("data: "))
            assert event["type"] == kind
            yield event


def without(value: Any, *names: str) -> Any:
    if isinstance(value, dict):
        return {name: without(item, *names) for name, item in value.items() if name not in names}
    return [without(item, *names) for item in value] if isinstance(value, list) else value


def test_whole_streamed_and_websocket_answers_are_the_same(server: ChatServer, client: httpx.Client) -> None:
    changing = ("id", "item_id", "created_at", "completed_at", "metrics", "input_tokens_details")
    whole = client.post(URL, json=ASK)
    assert whole.status_code == 200
    with client.stream("POST", URL, json=ASK | {"stream": True}) as response:
        assert response.headers["content-type"].startswith("text/event-stream")
        streamed = list(events(response.iter_lines()))
    with Socket(server) as socket:
        socket.create(**ASK | {"input": "hello"})
        sent = socket.until_end()

    def unmerged(messages: list[dict[str, Any]]) -> list[Any]:
        """Deltas are merged as chance will have it."""
        return [
            without(message, *changing, "sequence_number")
            for message in messages
            if message["type"] != "response.output_text.delta"
        ]

    assert unmerged(streamed) == unmerged(sent)
    assert without(streamed[-1]["response"], *changing) == without(whole.json(), *changing)


def test_a_conversation_goes_on_over_http(client: httpx.Client) -> None:
    first = client.post(URL, json=ASK | {"input": "x" * 60}).json()
    second = client.post(URL, json=ASK | {"previous_response_id": first["id"]}).json()
    assert second["previous_response_id"] == first["id"]
    assert second["usage"]["input_tokens_details"]["cached_tokens"] == 64


def test_a_kept_response_is_fetched_until_it_is_deleted(client: httpx.Client) -> None:
    made = client.post(URL, json=ASK | {"metadata": {"a": "b"}}).json()
    assert client.get(f"{URL}/{made['id']}").json() == made
    deleted = client.delete(f"{URL}/{made['id']}")
    assert deleted.json() == {"id": made["id"], "object": "response.deleted", "deleted": True}
    for method in ("GET", "DELETE"):
        answer = client.request(method, f"{URL}/{made['id']}")
        assert (answer.status_code, answer.json()["error"]["code"]) == (404, "response_not_found")
    refused = client.post(URL, json=ASK | {"previous_response_id": made["id"]})
    assert (refused.status_code, refused.json()["error"]["code"]) == (400, "previous_response_not_found")


def test_a_running_response_is_fetched_and_cancelled(server: ChatServer, client: httpx.Client) -> None:
    server.runner.seconds = 0.002
    with client.stream("POST", URL, json=ENDLESS | {"stream": True}) as response:
        stream = events(response.iter_lines())
        running = next(stream)["response"]["id"]
        assert client.get(f"{URL}/{running}").json()["status"] == "in_progress"
        cancelled = client.post(f"{URL}/{running}/cancel").json()
        *_, last = stream
    assert cancelled["status"] == "cancelled"
    assert (last["type"], last["response"]) == ("response.incomplete", cancelled)
    again = client.post(f"{URL}/{running}/cancel")
    assert (again.status_code, again.json()["error"]["code"]) == (404, "response_not_found")


def test_an_answer_that_nobody_streams_is_cancelled_too(server: ChatServer, client: httpx.Client) -> None:
    server.runner.seconds = 0.002
    answers: list[httpx.Response] = []
    asking = threading.Thread(target=lambda: answers.append(client.post(URL, json=ENDLESS)))
    asking.start()
    server.wait_until(lambda: bool(server.state.engine._streams))
    (running,) = server.state.engine._streams
    client.post(f"{URL}/{running}/cancel")
    asking.join()
    assert answers[0].json()["status"] == "cancelled"


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_goes_ends_its_response(server: ChatServer, stream: bool) -> None:
    server.runner.seconds = 0.002
    body = json.dumps(ENDLESS | {"stream": stream}).encode()
    with server.connect() as connection:
        connection.sendall(
            b"POST /v1/responses HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body)
        )
        server.wait_until(lambda: server.runner.fake.steps > 5)
    server.wait_until(lambda: server.state.in_flight == 0)
    assert server.runner.fake.steps < 300


BAD_BODIES: list[tuple[bytes, str | None]] = [
    (b"{bad", None),
    (b"null", None),
    (b"[1]", None),
    (b'"x"', None),
    (b"{}", "input"),
    (b'{"input": 123}', "input"),
    (b'{"input": "\\ud800"}', None),
    (b'{"input": "a", "temperature": NaN}', "temperature"),
    (b'{"input": "a", "temperature": 1e999}', "temperature"),
    (b'{"input": "a", "top_p": "nan"}', "top_p"),
    (b'{"input": "a", "top_k": true}', "top_k"),
    (b'{"input": "a", "stream_id": "x"}', "stream_id"),
    (b'{"input": "a", "tools": [{}]}', "tools"),
    (b"\xff", None),
]


@pytest.mark.parametrize("stream", [False, True])
def test_a_bad_body_is_a_400_in_openais_shape_before_any_event(client: httpx.Client, stream: bool) -> None:
    for body, param in BAD_BODIES:
        sent = body[:-1] + b', "stream": true}' if stream and body[:1] == b"{" and body[-1:] == b"}" and param else body
        answer = client.post(URL, content=sent.replace(b"{,", b"{"))
        assert answer.status_code == 400, (body, answer.text)
        error = answer.json()["error"]
        assert error["type"] == "invalid_request_error"
        assert error["param"] == param, (body, error)


def test_a_full_queue_is_a_429_even_for_a_stream() -> None:
    with ChatServer(max_num_seqs=1, max_num_queued_reqs=1) as server, server.client() as client:
        server.runner.seconds = 0.002
        with Socket(server) as socket:
            socket.create("a", stream_id="runs", max_output_tokens=400, ignore_eos=True)
            socket.until("response.output_text.delta", stream_id="runs")
            socket.create("a", stream_id="waits", max_output_tokens=400, ignore_eos=True)
            socket.until("response.in_progress", stream_id="waits")
            server.wait_until(lambda: server.in_engine(lambda engine: engine.scheduler.num_waiting) == 1)
            answer = client.post(URL, json=ASK | {"stream": True})
            assert (answer.status_code, answer.json()["error"]["code"]) == (429, "queue_full")
            assert answer.headers["retry-after"] == "1"


def test_a_shutdown_says_so_to_those_it_cuts_off() -> None:
    with ChatServer(config={"shutdown_timeout": 0.0}) as server, server.client() as client:
        server.runner.seconds = 0.002
        with client.stream("POST", URL, json=ENDLESS | {"stream": True}) as response:
            stream = events(response.iter_lines())
            next(stream)
            server.stop()
            *_, last = stream
        assert last["type"] == "response.failed"
        assert last["response"]["error"]["code"] == "shutting_down"
        server.join()


SCHEMA = {"type": "object", "properties": {"a": {"enum": ["b", "c"]}}, "required": ["a"], "additionalProperties": False}


def test_a_schema_that_cannot_be_followed_is_refused_by_name(client: httpx.Client) -> None:
    for text in (
        {"format": {"type": "json_schema", "name": "x"}},
        {"format": {"type": "grammar"}},
        {"format": {"type": "json_schema", "name": "x", "schema": {"type": "no such type"}}},
    ):
        answer = client.post(URL, json=ASK | {"text": text})
        assert answer.status_code == 400, answer.text
        assert answer.json()["error"]["param"].startswith("text")
