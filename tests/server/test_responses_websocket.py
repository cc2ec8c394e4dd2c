"""The websocket of `/v1/responses`: many responses on one connection, and nothing that is sent can hurt any of them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from websockets.exceptions import ConnectionClosedError

from tests.server.chat_server import ChatServer, Socket, chat_server, text_of
from tests.server.running import RunningServer

ENDLESS: dict[str, Any] = {"ignore_eos": True, "max_output_tokens": 400}


@pytest.fixture
def server() -> Iterator[ChatServer]:
    yield from chat_server()


@pytest.fixture
def socket(server: ChatServer) -> Iterator[Socket]:
    with Socket(server) as socket:
        yield socket


def test_events_come_in_openais_order_and_are_numbered(socket: Socket) -> None:
    socket.create(**ENDLESS | {"max_output_tokens": 12})
    events = socket.until_end()
    kinds = [event["type"] for event in events]
    num_deltas = kinds.count("response.output_text.delta")
    assert kinds == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
        *["response.output_text.delta"] * num_deltas,
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
        "response.incomplete",
    ]
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    assert all("stream_id" not in event for event in events)
    response = events[-1]["response"]
    assert response["id"] == events[0]["response"]["id"]
    assert response["status"] == "incomplete"
    assert response["incomplete_details"] == {"reason": "max_output_tokens"}
    assert response["usage"]["output_tokens"] == 12
    (item,) = response["output"]
    assert item["content"][0]["text"] == text_of(events) == events[-4]["text"] == events[-3]["part"]["text"]
    assert item == events[-2]["item"]


def test_an_answer_that_ends_by_itself_is_completed(socket: Socket) -> None:
    for word in ("a", "b", "c", "d", "e", "f", "g", "h"):
        response = socket.ask(word)
        if response["status"] == "completed":
            assert "incomplete_details" not in response
            assert response["completed_at"] >= response["created_at"]
            assert response["output"][0]["status"] == "completed"
            return
    raise AssertionError("the fake model gave EOS to none of the prompts")


def test_a_stop_string_completes_it_and_is_not_sent(socket: Socket) -> None:
    whole = socket.ask("hello", **ENDLESS)["output"][0]["content"][0]["text"]
    stop = whole[5:8]
    response = socket.ask("hello", **ENDLESS, stop=[stop])
    assert response["status"] == "completed"
    assert response["output"][0]["content"][0]["text"] == whole[: whole.index(stop)]


def test_the_metrics_of_a_response_add_up(socket: Socket) -> None:
    metrics = socket.ask(max_output_tokens=4, ignore_eos=True)["metrics"]
    assert metrics["ttft"] == pytest.approx(metrics["queue_time"] + metrics["prefill_time"])
    assert metrics["mean_itl"] > 0


def test_lanes_run_at_once_and_give_what_each_gives_alone(socket: Socket) -> None:
    prompts = {f"lane.{number}": f"prompt {chr(97 + number)}" for number in range(8)}
    few = ENDLESS | {"max_output_tokens": 40}
    alone = {name: socket.ask(prompt, **few)["output"] for name, prompt in prompts.items()}
    for name, prompt in prompts.items():
        socket.create(prompt, stream_id=name, **few)
    events: dict[str, list[dict[str, Any]]] = {name: [] for name in prompts}
    order = []
    while not all(lane and lane[-1]["type"] == "response.incomplete" for lane in events.values()):
        event = socket.receive()
        order.append(event["stream_id"])
        events[event["stream_id"]].append(event)
    assert order != sorted(order)  # they took turns
    for name, lane in events.items():
        assert [event["sequence_number"] for event in lane] == list(range(len(lane)))
        assert text_of(lane) == alone[name][0]["content"][0]["text"]


def test_requests_on_one_named_lane_wait_for_their_turn(server: ChatServer, socket: Socket) -> None:
    server.runner.gate.clear()
    for word in ("first", "second", "third"):
        socket.create(word, stream_id="lane", max_output_tokens=2, metadata={"word": word})
    server.wait_until(lambda: server.state.in_flight == 3)
    server.runner.gate.set()
    events = [event for _ in range(3) for event in socket.until_end("lane")]
    words = [event["response"]["metadata"]["word"] for event in events if "response" in event]
    assert words == ["first"] * 3 + ["second"] * 3 + ["third"] * 3


def test_one_without_stream_id_is_refused_while_another_without_runs(server: ChatServer, socket: Socket) -> None:
    server.runner.gate.clear()
    socket.create(**ENDLESS)
    socket.create("another", **ENDLESS)
    refusal = next(message for message in iter(socket.receive, None) if message["type"] == "error")
    assert refusal["status"] == 400
    assert refusal["error"]["code"] == "response_in_progress"
    socket.create("named", stream_id="x", max_output_tokens=2)
    server.runner.gate.set()
    assert {socket.until_end()[-1]["type"]} == {"response.incomplete"}
    assert socket.ask("the lane is free again", max_output_tokens=1)["status"] == "incomplete"


def test_a_connection_has_a_limit_of_responses() -> None:
    with ChatServer(config={"max_responses_per_connection": 2}) as server, Socket(server) as socket:
        server.runner.gate.clear()
        for name in ("a", "b"):
            socket.create(stream_id=name, max_output_tokens=2)
        assert socket.refused(stream_id="c") == {
            "status": 429,
            "type": "rate_limit_error",
            "code": "websocket_stream_limit_reached",
            "message": "2 responses are under way on this connection, and 2 are the limit",
        }
        server.runner.gate.set()


# --- Cancelling ---


@pytest.mark.parametrize("by", ["response_id", "stream_id"])
def test_a_response_is_cancelled_by_its_id_or_its_lane(server: ChatServer, socket: Socket, by: str) -> None:
    server.runner.seconds = 0.002
    socket.create(stream_id="lane", **ENDLESS)
    started = socket.until("response.output_text.delta", stream_id="lane")
    name = "lane" if by == "stream_id" else started[0]["response"]["id"]
    socket.send({"type": "response.cancel", by: name})
    last = socket.until_end("lane")[-1]
    assert last["type"] == "response.incomplete"
    assert last["response"]["status"] == "cancelled"
    assert last["response"]["incomplete_details"] == {"reason": "cancelled"}
    assert last["response"]["usage"]["output_tokens"] < 400


def test_cancelling_a_lane_ends_what_waits_there_too(server: ChatServer, socket: Socket) -> None:
    server.runner.gate.clear()
    for _ in range(3):
        socket.create(stream_id="lane", **ENDLESS)
    server.wait_until(lambda: server.state.in_flight == 3)
    socket.send({"type": "response.cancel", "stream_id": "lane"})
    server.runner.gate.set()
    for _ in range(3):
        assert socket.until_end("lane")[-1]["response"]["status"] == "cancelled"


def test_cancelling_what_is_not_there_is_an_error_and_nothing_more(server: ChatServer, socket: Socket) -> None:
    with Socket(server) as other:
        server.runner.gate.clear()
        socket.create(stream_id="mine", max_output_tokens=3)
        response_id = socket.receive()["response"]["id"]
        for target in ({"stream_id": "mine"}, {"response_id": response_id}, {"response_id": "resp_none"}):
            other.send({"type": "response.cancel", **target})
            refusal = other.receive()
            assert (refusal["status"], refusal["error"]["code"]) == (404, "response_not_found")
        other.send({"type": "response.cancel"})
        assert other.receive()["error"]["message"] == "response.cancel needs either response_id or stream_id"
        server.runner.gate.set()
        assert socket.until_end("mine")[-1]["response"]["status"] == "incomplete"


# --- Clients that go ---


@pytest.mark.parametrize("stage", ["queued", "in the prefill", "after some tokens"])
def test_the_responses_of_a_closed_connection_are_aborted(stage: str) -> None:
    with ChatServer(max_num_seqs=1, budget=16) as server:
        server.runner.seconds = 0.002
        with Socket(server) as other, Socket(server) as socket:
            if stage == "queued":
                other.create("takes the only seat", **ENDLESS)
                other.until("response.output_text.delta")
            socket.create("a" * 400 if stage == "in the prefill" else "a", stream_id="x", **ENDLESS)
            if stage == "after some tokens":
                socket.until("response.output_text.delta", stream_id="x")
            else:
                socket.until("response.in_progress", stream_id="x")
            request_id = next(iter(server.state.engine._streams))
            socket.close()
            if stage != "queued":
                steps = server.runner.fake.steps
                server.wait_until(lambda: not server.in_engine(lambda engine: engine.has_work()))
                assert server.runner.fake.steps < steps + 100
                assert request_id.startswith("resp_")


# --- Strictness ---

BAD_FRAMES: list[tuple[str | bytes, str]] = [
    ("{bad", "valid JSON"),
    ("", "valid JSON"),
    ("null", "JSON object, got null"),
    ("[1]", "JSON object, got [1]"),
    ('"x"', "JSON object"),
    ("{}", "type must be one of response.create, response.cancel"),
    ('{"type": 42}', "type must be one of"),
    ('{"type": "response.steer"}', "type must be one of"),
    ('{"type": "response.create", "input": 123}', "input must be"),
    ('{"type": "response.create", "input": "\\ud800"}', "lone surrogate"),
    ('{"type": "response.create", "input": "a", "temperature": NaN}', "NaN"),
    ('{"type": "response.create", "input": "a", "ig\\ud800nore": NaN}', "ig\\ud800nore: a message must be"),
    ("[" * 100_000, "nested too deeply"),
    (b'{"type": "response.create", "input": "a"}', "text frame"),
]


def test_each_bad_frame_gets_one_error_and_a_stream_beside_it_is_untouched(server: ChatServer, socket: Socket) -> None:
    alone = socket.ask(**ENDLESS)["output"][0]["content"]
    server.runner.seconds = 0.002
    socket.create(stream_id="good", **ENDLESS)
    for frame, _ in BAD_FRAMES:
        socket.send(frame)
    events, errors = [], []
    while not events or events[-1]["type"] != "response.incomplete":
        message = socket.receive()
        (errors if message["type"] == "error" else events).append(message)
    assert [error["status"] for error in errors] == [400] * len(BAD_FRAMES)
    for error, (_, reason) in zip(errors, BAD_FRAMES, strict=True):
        assert reason in error["error"]["message"]
        assert error["error"]["type"] == "invalid_request_error"
    assert events[-1]["response"]["output"][0]["content"] == alone
    assert [event["sequence_number"] for event in events] == list(range(len(events)))


NUMBERS = ["temperature", "top_p", "min_p", "presence_penalty", "frequency_penalty", "repetition_penalty"]
INTEGERS = ["top_k", "seed", "min_tokens", "max_output_tokens", "top_logprobs", "priority"]
# A negative top_k is off only where it is -1, and lower priorities are more urgent ones.
WRONG = [
    *((name, value) for name in [*NUMBERS, *INTEGERS] for value in ('"nan"', "NaN", "Infinity", "1e999", "true", "[]")),
    *((name, "-1") for name in [*NUMBERS, *INTEGERS] if name not in ("top_k", "priority", *NUMBERS[3:5])),
    ("presence_penalty", "-3"),
    ("frequency_penalty", "2.5"),
    ("top_k", "-2"),
    ("top_k", "1.5"),
    ("top_p", "1.5"),
    ("stop", "[1]"),
    ("stop", '[""]'),
    ("ignore_eos", "1"),
    ("cache_salt", '""'),
    ("stream_id", '"a b"'),
    ("metadata", '{"a": 1}'),
    ("store", '"yes"'),
]


def test_a_wrong_value_is_refused_with_the_name_of_its_field(socket: Socket) -> None:
    for name, value in WRONG:
        socket.send(f'{{"type": "response.create", "input": "a", "{name}": {value}}}')
        refusal = socket.receive()
        assert refusal["type"] == "error", (name, value, refusal)
        assert refusal["status"] == 400, (name, value)
        assert refusal["error"]["param"].partition(".")[0].partition("[")[0] == name, (value, refusal)


UNSUPPORTED: dict[str, Any] = {
    "tools": [{"type": "function", "name": "f"}],
    "tool_choice": "required",
    "background": True,
    "conversation": "conv_1",
    "include": ["file_search_call.results"],
    "prompt": {"id": "p"},
    "reasoning": {"effort": "high"},
    "truncation": "auto",
    "no_such_field": 1,
}
HARMLESS: dict[str, Any] = {
    "tools": [],
    "tool_choice": "auto",
    "background": False,
    "conversation": None,
    "include": ["message.output_text.logprobs"],
    "reasoning": {"effort": None},
    "truncation": "disabled",
    "user": "u",
    "service_tier": "auto",
    "parallel_tool_calls": True,
}


def test_what_is_not_supported_is_refused_by_name(socket: Socket) -> None:
    for name, value in UNSUPPORTED.items():
        refusal = socket.refused(**{name: value})
        assert (refusal["code"], refusal["param"]) == ("unsupported_parameter", name)
        assert name in refusal["message"]
    assert socket.ask(max_output_tokens=1, **HARMLESS)["status"] == "incomplete"


@pytest.mark.parametrize(
    "part", [{"type": "input_image", "image_url": "http://x"}, {"type": "input_file"}, {"text": "x"}]
)
def test_content_that_is_no_text_is_refused(socket: Socket, part: dict[str, Any]) -> None:
    refusal = socket.refused(input=[{"role": "user", "content": [{"type": "input_text", "text": "a"}, part]}])
    assert refusal["param"] == "input[0].content[1].type"


@pytest.mark.parametrize("input", ["", [], [{"role": "user", "content": ""}], None])
def test_an_input_without_content_is_refused(socket: Socket, input: Any) -> None:
    assert socket.refused(input=input)["param"] == "input"


def test_a_prompt_that_can_never_fit_is_refused_before_any_event(socket: Socket) -> None:
    refusal = socket.refused(input="z" * 600)
    assert (refusal["status"], refusal["param"]) == (400, "input")
    assert "603 tokens" in refusal["message"]
    assert "512" in refusal["message"]


def test_a_model_that_is_not_served_is_not_found(socket: Socket) -> None:
    refusal = socket.refused(model="other")
    assert (refusal["status"], refusal["code"], refusal["param"]) == (404, "model_not_found", "model")


def test_a_full_queue_fails_the_response_with_its_code() -> None:
    with ChatServer(max_num_seqs=1, max_num_queued_reqs=1) as server, Socket(server) as socket:
        server.runner.seconds = 0.01
        socket.create("runs", stream_id="a", **ENDLESS)
        socket.until("response.output_text.delta", stream_id="a")
        socket.create("waits", stream_id="b", **ENDLESS)
        server.wait_until(lambda: server.in_engine(lambda engine: engine.scheduler.num_waiting) == 1)
        socket.create("is refused", stream_id="c", **ENDLESS)
        last = socket.until_end("c")[-1]
        assert last["type"] == "response.failed"
        assert last["response"]["error"]["code"] == "queue_full"


@pytest.mark.parametrize(("excess", "answered"), [(-1, True), (1, False)])
def test_frames_above_the_limit_close_the_connection_with_1009(server: ChatServer, excess: int, answered: bool) -> None:
    frame = '{"type": "response.create", "input": "%s"}'
    frame %= "a" * (2**20 + excess - len(frame) + 2)
    assert len(frame) == 2**20 + excess
    with Socket(server) as bystander, Socket(server) as socket:
        server.runner.seconds = 0.002
        bystander.create(**ENDLESS)
        socket.send(frame)
        if answered:
            assert "tokens" in socket.receive()["error"]["message"]
        else:
            with pytest.raises(ConnectionClosedError) as closed:
                socket.receive()
            assert closed.value.rcvd is not None
            assert closed.value.rcvd.code == 1009
        assert bystander.until_end()[-1]["response"]["usage"]["output_tokens"] == 400


# --- Keys ---


def test_a_key_is_asked_for_before_the_handshake() -> None:
    with ChatServer(config={"api_keys": ("sesame",)}) as server:
        for headers in ({}, {"Authorization": "Bearer wrong"}):
            with pytest.raises(Exception, match="401"):
                Socket(server, additional_headers=headers)
        with Socket(server, additional_headers={"Authorization": "Bearer sesame"}) as socket:
            assert socket.ask(max_output_tokens=1)["status"] == "incomplete"


# --- The engine's end ---


def test_when_the_engine_dies_every_response_fails_and_says_so(server: RunningServer, socket: Socket) -> None:
    server.runner.seconds = 0.002
    for name in ("a", "b"):
        socket.create(stream_id=name, **ENDLESS)
    socket.until("response.output_text.delta", stream_id="b")
    server.runner.fake.fails = RuntimeError("boom")
    last = {}
    while len(last) < 2:
        message = socket.receive()
        if message["type"] == "response.failed":
            last[message["stream_id"]] = message["response"]
    for response in last.values():
        assert response["status"] == "failed"
        assert response["error"]["code"] == "engine_dead"
        assert "boom" in response["error"]["message"]
    server.wait_until(server.state.died.is_set)
