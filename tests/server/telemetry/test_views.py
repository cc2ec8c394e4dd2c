"""What a subscriber of `/v1/telemetry` sees: snapshots and updates over real sockets, until it is the truth."""

from __future__ import annotations

import contextlib
import socket
import time
from typing import Any

from tests.server.running import RunningServer
from tests.server.telemetry.connection import FAST, Telemetry, complete, stream


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
