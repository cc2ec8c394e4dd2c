"""`/v1/telemetry` over real sockets, from a server on the fake model."""

from __future__ import annotations

import contextlib
import json
import socket
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from websockets.exceptions import ConnectionClosedError, InvalidStatus
from websockets.sync.client import ClientConnection, connect

from cudaprefill.client.engine_view import EngineView
from cudaprefill.protocol.codec import decode
from cudaprefill.protocol.telemetry import CLIENT_MESSAGES, SERVER_MESSAGES, TelemetrySnapshot, TelemetryUpdate
from tests.server.running import PATIENCE, RunningServer

FAST = 60.0  # updates a second
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


class Telemetry:
    """One connection, and a view of what came over it."""

    connection: ClientConnection

    def __init__(self, server: RunningServer, **options: Any) -> None:
        self._connecting = connect(
            server.url.replace("http", "ws") + "/v1/telemetry", compression=None, max_size=2**24, **options
        )
        self.view = EngineView()
        self.messages: list[Any] = []

    def __enter__(self) -> Telemetry:
        self.connection = self._connecting.__enter__()
        return self

    def __exit__(self, *exception: object) -> None:
        self.connection.close()

    def send(self, kind: str, **fields: Any) -> None:
        self.connection.send(json.dumps({"type": f"telemetry.{kind}", **fields}))

    def receive(self, timeout: float = PATIENCE) -> Any:
        text = self.connection.recv(timeout)
        assert isinstance(text, str)
        message = decode(text, SERVER_MESSAGES)
        assert message.sequence_number == len(self.messages)
        self.messages.append(message)
        if isinstance(message, (TelemetrySnapshot, TelemetryUpdate)):
            self.view.apply(message)
        return message

    def until(self, condition: Callable[[], bool]) -> None:
        give_up = time.monotonic() + PATIENCE
        while not condition():
            assert time.monotonic() < give_up
            self.receive()

    def until_answer(self, kind: str) -> Any:
        """The next message of a kind; updates may come before it."""
        while (message := self.receive()).type != kind:
            assert isinstance(message, (TelemetrySnapshot, TelemetryUpdate)), message
        return message

    def subscribe(self, **wishes: Any) -> TelemetrySnapshot:
        self.send("subscribe", **{"rate": FAST, "owners": True, **wishes})
        message = self.until_answer("telemetry.snapshot")
        assert isinstance(message, TelemetrySnapshot)
        return message

    def silence(self, seconds: float) -> bool:
        """Whether nothing comes for so long."""
        with contextlib.suppress(TimeoutError):
            self.receive(seconds)
            return False
        return True


@pytest.fixture
def server() -> Iterator[RunningServer]:
    """One that has done nothing yet."""
    with RunningServer() as server:
        yield server


@pytest.fixture
def telemetry(server: RunningServer) -> Iterator[Telemetry]:
    with Telemetry(server) as telemetry:
        yield telemetry


def complete(server: RunningServer, prompt: list[int], max_tokens: int = 8, **fields: Any) -> None:
    body = {"model": "letters", "prompt": prompt, "max_tokens": max_tokens, "ignore_eos": True, **fields}
    with server.client() as client:
        client.post("/v1/completions", json=body).raise_for_status()


@contextlib.contextmanager
def stream(server: RunningServer, prompt: list[int], max_tokens: int = 300) -> Iterator[Iterator[str]]:
    body = {"model": "letters", "prompt": prompt, "max_tokens": max_tokens, "ignore_eos": True, "stream": True}
    with server.client() as client, client.stream("POST", "/v1/completions", json=body) as response:
        assert response.status_code == 200
        lines = response.iter_lines()
        next(lines)
        yield lines


def is_watched(server: RunningServer) -> bool:
    """Whether the engine records which blocks change. What was recorded is lost to those who watch."""

    def records(engine: Any) -> bool:
        pool = engine.scheduler.pool
        pool.take_changes()
        block = pool.allocate()
        recorded = len(pool.take_changes()) > 0
        pool.free([block])
        return recorded

    return server.in_engine(records)


def num_listeners(server: RunningServer) -> int:
    return len(server.state.engine.events._listeners)


# --- Snapshots and updates ---


def test_the_view_of_a_subscriber_is_the_truth_once_all_is_told(server: RunningServer, telemetry: Telemetry) -> None:
    telemetry.subscribe()
    for length in (3, 40, 100):
        complete(server, [length % 20] * length)
    view = telemetry.view
    pool = server.in_engine(lambda engine: engine.scheduler.pool_totals())
    telemetry.until(lambda: view.pool == pool)
    assert [record.state for record in view.requests.values()] == ["finished"] * 3
    assert [record.output_tokens for record in view.requests.values()] == [8] * 3
    assert [record.prompt_tokens for record in view.requests.values()] == [3, 40, 100]
    states = server.in_engine(lambda engine: engine.scheduler.pool.states().tolist())
    assert view.blocks.states.decode() == "".join(".asc"[state] for state in states)
    assert view.blocks.owners == {}
    assert view.engine is not None
    assert (view.engine.model, view.engine.num_blocks) == ("letters", 64)


def test_who_subscribes_while_requests_run_sees_them(server: RunningServer, telemetry: Telemetry) -> None:
    server.runner.seconds = 0.002
    with stream(server, [1, 2, 3]):
        snapshot = telemetry.subscribe()
        (record,) = snapshot.requests or ()
        assert record.state == "decoding"
        assert record.prompt_tokens == 3
        assert snapshot.owners is not None
        assert set(snapshot.owners) == {str(record.number)}
        telemetry.until(lambda: len(telemetry.view.steps) > 5)
        assert telemetry.view.steps[-1].decodes == {record.number}


def test_nothing_is_sent_while_nothing_happens(server: RunningServer, telemetry: Telemetry) -> None:
    telemetry.subscribe()
    complete(server, [1, 2, 3])
    telemetry.until(lambda: [r.state for r in telemetry.view.requests.values()] == ["finished"])
    while not telemetry.silence(0.3):
        pass
    calls = count_engine_calls(server)
    assert telemetry.silence(0.5)
    assert calls == []


def count_engine_calls(server: RunningServer) -> list[object]:
    """A list that grows with every call into the engine's thread from here on."""
    thread = server.state.engine._engine
    calls: list[object] = []
    put = thread._put

    def counted(*arguments: Any) -> Any:
        calls.append(arguments)
        return put(*arguments)

    thread._put = counted  # type: ignore[method-assign]
    return calls


def test_updates_keep_to_the_rate_that_was_asked_for(server: RunningServer, telemetry: Telemetry) -> None:
    server.runner.seconds = 0.002
    telemetry.subscribe(rate=5.0)
    begin = time.monotonic()
    with stream(server, [1, 2, 3], max_tokens=400) as lines:
        for _ in lines:
            pass
    telemetry.until(lambda: [r.state for r in telemetry.view.requests.values()] == ["finished"])
    elapsed = time.monotonic() - begin
    num_updates = len(telemetry.messages) - 1
    assert 1 <= num_updates <= elapsed * 5.0 + 2
    assert len(telemetry.view.steps) == 400


def test_a_second_subscription_replaces_the_first(server: RunningServer, telemetry: Telemetry) -> None:
    telemetry.subscribe(rate=0.2)
    snapshot = telemetry.subscribe(events=["request"], owners=False)
    assert (snapshot.blocks, snapshot.owners) == (None, None)
    complete(server, [1, 2, 3])
    update = telemetry.receive()
    assert update.requests is not None
    assert (update.blocks, update.steps, update.pool) == (None, None, None)


def test_all_subscribers_share_one_pull_a_tick(server: RunningServer) -> None:
    with contextlib.ExitStack() as stack:
        readers = [stack.enter_context(Telemetry(server)) for _ in range(8)]
        for reader in readers:
            reader.subscribe(rate=5.0)
        calls = count_engine_calls(server)
        complete(server, [1, 2, 3])
        for reader in readers:
            reader.until(lambda reader=reader: [r.state for r in reader.view.requests.values()] == ["finished"])  # type: ignore[misc]
        num_ticks = max(len(reader.messages) for reader in readers) - 1
        assert len(calls) - 1 <= num_ticks + 1  # the request itself is a call, and one tick may have been under way


# --- Commands ---


def test_settings_are_changed_for_all_to_see(server: RunningServer, telemetry: Telemetry) -> None:
    with Telemetry(server) as other:
        telemetry.subscribe()
        other.subscribe()
        telemetry.send("change_settings", max_num_batched_tokens=48, itl_target_ms=20.0, command_id=7)
        assert telemetry.until_answer("telemetry.done").command_id == 7
        for reader in (telemetry, other):
            reader.until(lambda reader=reader: reader.view.settings.max_num_batched_tokens == 48)  # type: ignore[misc]
            assert reader.view.settings is not None
            assert reader.view.settings.itl_target_ms == 20.0
        telemetry.send("change_settings", itl_target_ms=0)
        other.until(lambda: other.view.settings is not None and other.view.settings.itl_target_ms is None)
    with server.client() as client:
        client.post("/v1/engine", json={"max_num_batched_tokens": 32}).raise_for_status()
    telemetry.until(
        lambda: telemetry.view.settings is not None and telemetry.view.settings.max_num_batched_tokens == 32
    )


def test_a_setting_that_cannot_be_is_an_error_that_names_it(telemetry: Telemetry) -> None:
    telemetry.send("change_settings", max_num_batched_tokens=-3, command_id=5)
    error = telemetry.receive()
    assert (error.type, error.param, error.command_id) == ("error", "max_num_batched_tokens", 5)
    assert "-3" in error.message


def test_a_request_is_aborted_by_its_id(server: RunningServer, telemetry: Telemetry) -> None:
    server.runner.seconds = 0.002
    telemetry.subscribe()
    with stream(server, [1, 2, 3], max_tokens=450) as lines:
        telemetry.until(lambda: bool(telemetry.view.requests))
        (record,) = telemetry.view.requests.values()
        telemetry.send("abort", id=record.id)
        assert "abort" in "".join(lines)
    telemetry.until(lambda: [r.finish_reason for r in telemetry.view.requests.values()] == ["abort"])
    telemetry.send("abort", id=record.id)
    error = telemetry.until_answer("error")
    assert (error.code, error.param) == ("request_not_found", "id")


@pytest.mark.parametrize("over_http", [False, True])
def test_a_reset_of_the_prefix_cache_frees_the_cached_blocks_in_every_view(
    server: RunningServer, telemetry: Telemetry, over_http: bool
) -> None:
    telemetry.subscribe()
    complete(server, [3] * 40)
    telemetry.until(lambda: telemetry.view.pool is not None and telemetry.view.pool.cached == 2)
    assert telemetry.view.blocks.count("c") == 2
    if over_http:
        with server.client() as client:
            client.post("/reset_prefix_cache").raise_for_status()
    else:
        telemetry.send("reset_prefix_cache")
    telemetry.until(lambda: telemetry.view.pool is not None and telemetry.view.pool.cached == 0)
    assert telemetry.view.blocks.count(".") == 64


def test_a_block_is_described_with_its_text(server: RunningServer, telemetry: Telemetry) -> None:
    server.runner.seconds = 0.002
    telemetry.subscribe()
    with stream(server, [*range(16), 5]):
        telemetry.until(lambda: bool(telemetry.view.blocks.owners))
        (record,) = telemetry.view.requests.values()
        block = telemetry.view.blocks.owners[record.number][0]
        telemetry.send("describe_block", block=block)
        described = telemetry.until_answer("telemetry.block")
    assert (described.block, described.state, described.reference_count) == (block, "active", 1)
    assert described.owners == [record.id]
    assert described.token_ids == list(range(16))
    assert described.text == "ABCDEFGHIJKLMNOP"
    assert described.age >= 0
    assert described.hash


@pytest.mark.parametrize("block", [-1, 64])
def test_a_block_that_there_is_not_is_an_error_with_both_numbers(telemetry: Telemetry, block: int) -> None:
    telemetry.send("describe_block", block=block)
    error = telemetry.receive()
    assert (error.type, error.param, error.message) == (
        "error",
        "block",
        f"block must be between 0 and 63, got {block}",
    )


# --- Bad input ---


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


# --- Slow readers, and those who go ---


def test_a_reader_that_stops_reading_disturbs_nobody_and_comes_back_to_the_truth(server: RunningServer) -> None:
    with Telemetry(server) as prompt_one, Telemetry(server, max_queue=1) as slow:
        slow.send("subscribe", rate=FAST, owners=True)
        prompt_one.subscribe()
        for round in range(40):
            complete(server, [round % 20] * 33)
            while not prompt_one.silence(0.0):
                pass
        pool = server.in_engine(lambda engine: engine.scheduler.pool_totals())
        states = server.in_engine(lambda engine: engine.scheduler.pool.states().tolist())
        for reader in (prompt_one, slow):
            reader.until(lambda reader=reader: reader.view.pool == pool)  # type: ignore[misc]
            assert reader.view.blocks.states.decode() == "".join(".asc"[state] for state in states)
            assert [record.state for record in reader.view.requests.values()] == ["finished"] * 40


def test_a_closed_connection_leaves_nothing_behind(server: RunningServer) -> None:
    before = num_listeners(server)
    with Telemetry(server) as one, Telemetry(server) as two:
        one.subscribe()
        two.subscribe()
        assert num_listeners(server) == before + 1
        assert is_watched(server)
        one.connection.close()
        complete(server, [1, 2, 3])
        two.until(lambda: bool(two.view.requests))
        assert is_watched(server)
        two.connection.socket.shutdown(socket.SHUT_RDWR)  # goes without a word
        server.wait_until(lambda: not is_watched(server), "the recording of blocks to end")
    assert num_listeners(server) == before


def test_a_connection_that_never_subscribes_costs_the_engine_nothing(
    server: RunningServer, telemetry: Telemetry
) -> None:
    telemetry.send("reset_prefix_cache", command_id=1)
    assert telemetry.receive().type == "telemetry.done"
    assert not is_watched(server)


# --- A new engine ---


def test_after_a_restart_of_the_engine_a_snapshot_says_so() -> None:
    with RunningServer(config={"restart_engine": True}) as server, Telemetry(server) as telemetry:
        telemetry.subscribe()
        complete(server, [1, 2, 3])
        telemetry.until(lambda: bool(telemetry.view.requests))
        old = server.engine
        server.runner.fake.fails = RuntimeError("the device is gone")
        with server.client() as client:
            client.post("/v1/completions", json={"model": "letters", "prompt": [1], "max_tokens": 2})
        snapshot = telemetry.until_answer("telemetry.snapshot")
        assert snapshot.reason == "restarted"
        assert snapshot.requests == []
        assert server.engine is not old
        complete(server, [1, 2, 3])
        telemetry.until(lambda: [r.state for r in telemetry.view.requests.values()] == ["finished"])
        with server.client() as client:
            assert (
                'cudaprefill:engine_restarts_total{engine="0",model_name="letters"} 1.0' in client.get("/metrics").text
            )
