"""Whatever comes over `/v1/telemetry` is answered, and harms neither its connection nor another."""

from __future__ import annotations

import json

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from websockets.exceptions import ConnectionClosedError, InvalidStatus
from websockets.sync.client import connect

from cudaprefill.protocol.telemetry import CLIENT_MESSAGES
from tests.server.running import PATIENCE, RunningServer
from tests.server.telemetry.connection import Telemetry, complete, stream

BAD_MESSAGES = [
    "{bad",
    "null",
    "[1]",
    '"x"',
    "{}",
    '{"type": 42}',
    '{"type": "telemetry.abort", "id": 123}',
    '{"type": "telemetry.subscribe", "rate": NaN}',
    '{"type": "telemetry.subscribe", "rate": 1e999}',
    '{"type": "telemetry.subscribe", "rate": 1000}',
    '{"type": "telemetry.subscribe", "events": ["steps"]}',
    '{"type": "telemetry.subscribe", "events": []}',
    '{"type": "telemetry.abort", "id": "\\ud800"}',
    b"\x00\x01",
]


def test_bad_messages_are_answered_one_by_one_and_the_connection_goes_on(
    server: RunningServer, telemetry: Telemetry
) -> None:
    server.runner.seconds = 0.002
    with stream(server, [1, 2, 3], max_tokens=200) as lines:
        for message in BAD_MESSAGES:
            telemetry.connection.send(message)
            answer = telemetry.receive()
            assert answer.type == "error", message
            assert answer.code in ("invalid_message", "invalid_request")
        snapshot = telemetry.subscribe()
        assert snapshot.reason == "subscribed"
        rest = "".join(lines)
        assert '"finish_reason": "length"' in rest
        assert "error" not in rest
    telemetry.until(lambda: [record.output_tokens for record in telemetry.view.requests.values()] == [200])


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=5,
)
almost_commands = st.fixed_dictionaries(
    {"type": st.sampled_from([*CLIENT_MESSAGES, "telemetry.update", "x"])},
    optional={
        "events": json_values,
        "rate": st.sampled_from([0.2, 60, 0, -1]) | json_values,
        "owners": json_values,
        "block": st.integers(-2, 70) | json_values,
        "id": json_values,
        "max_num_batched_tokens": st.integers(-1, 100) | json_values,
        "itl_target_ms": json_values,
        "command_id": st.integers(0, 3) | json_values,
    },
).map(json.dumps)


@settings(max_examples=5, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.text(max_size=40) | st.binary(max_size=40) | almost_commands, min_size=80, max_size=80))
def test_whatever_is_sent_is_answered_and_the_connection_goes_on(
    server: RunningServer, frames: list[str | bytes]
) -> None:
    with Telemetry(server) as telemetry:
        for frame in frames:
            telemetry.connection.send(frame)
        telemetry.send("reset_prefix_cache", command_id=10**6)
        while getattr(message := telemetry.receive(), "command_id", None) != 10**6:
            if message.type == "error":
                assert message.code in ("invalid_message", "invalid_request", "request_not_found"), message
        telemetry.subscribe()
        complete(server, [1, 2, 3])
        telemetry.until(lambda: [r.state for r in telemetry.view.requests.values()][-1:] == ["finished"])


def test_a_bad_command_with_an_id_is_answered_by_that_id(telemetry: Telemetry) -> None:
    telemetry.send("abort", command_id=3)
    error = telemetry.receive()
    assert (error.type, error.param, error.command_id) == ("error", "id", 3)


def test_a_message_beyond_the_limit_closes_the_connection_and_no_other(
    server: RunningServer, telemetry: Telemetry
) -> None:
    with Telemetry(server) as other:
        other.subscribe()
        telemetry.connection.send("x" * (2**20 + 1))
        with pytest.raises(ConnectionClosedError) as closed:
            telemetry.receive()
        assert closed.value.rcvd is not None
        assert closed.value.rcvd.code == 1009
        complete(server, [1, 2])
        other.until(lambda: bool(other.view.requests))


def test_telemetry_needs_the_key_where_there_is_one() -> None:
    with RunningServer(config={"api_keys": ("secret",)}) as server:
        url = server.url.replace("http", "ws") + "/v1/telemetry"
        with pytest.raises(InvalidStatus) as refused:
            connect(url)
        assert refused.value.response.status_code == 401
        with connect(url, additional_headers={"Authorization": "Bearer secret"}) as connection:
            connection.send('{"type": "telemetry.subscribe"}')
            assert json.loads(connection.recv(PATIENCE))["type"] == "telemetry.snapshot"
