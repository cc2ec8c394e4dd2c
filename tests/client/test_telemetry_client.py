"""The client of `/v1/telemetry`: whole after every reconnect, and commands that say whether they succeeded."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import httpx
import pytest
from websockets.asyncio.server import ServerConnection, serve

from cudaprefill.client import Backoff, ConnectionFailedError, ConnectionLostError, ServerError
from cudaprefill.client.engine_view import EngineView
from cudaprefill.client.telemetry import MAX_UNREAD, TelemetryConnection
from cudaprefill.protocol.telemetry import TelemetrySnapshot, TelemetryUpdate
from tests.client.cuttable import Cuttable
from tests.server.running import PATIENCE, RunningServer

QUICK = Backoff(first=0.005, longest=0.02, attempts=400)
Message = TelemetrySnapshot | TelemetryUpdate


@pytest.fixture
def server() -> Iterator[RunningServer]:
    """One that has done nothing yet."""
    with RunningServer() as server:
        yield server


def with_telemetry(url: str, session: Callable[[TelemetryConnection], Awaitable[None]], **options: Any) -> None:
    async def main() -> None:
        async with TelemetryConnection(url, **{"rate": 60.0, "backoff": QUICK, **options}) as telemetry:
            await session(telemetry)

    asyncio.run(main())


async def receive(telemetry: TelemetryConnection) -> Message:
    return await asyncio.wait_for(anext(telemetry), PATIENCE)


async def complete(server: RunningServer, prompt: list[int], max_tokens: int = 4) -> None:
    body = {"prompt": prompt, "max_tokens": max_tokens, "ignore_eos": True}
    async with httpx.AsyncClient(base_url=server.url, timeout=PATIENCE) as client:
        (await client.post("/v1/completions", json=body)).raise_for_status()


def test_after_a_cut_a_snapshot_makes_up_for_what_was_missed(server: RunningServer) -> None:
    with Cuttable(server.port) as relay:
        view, connected = EngineView(), []

        async def session(telemetry: TelemetryConnection) -> None:
            view.apply(await receive(telemetry))
            await complete(server, [1] * 40)
            while not view.requests or view.pool is None or view.pool.cached != 2:
                view.apply(await receive(telemetry))
            relay.refusing = True
            relay.cut()
            await complete(server, [2] * 40)
            await asyncio.sleep(0.05)
            relay.refusing = False
            while not isinstance(message := await receive(telemetry), TelemetrySnapshot):
                view.apply(message)
            view.apply(message)
            assert message.reason == "subscribed"

        with_telemetry(relay.url, session, on_connection=connected.append)
        assert view.pool == server.in_engine(lambda engine: engine.scheduler.pool_totals())
        assert view.blocks.count("c") == 4
        assert connected == [True, False, True, False]


def test_commands_work_inside_the_loop_that_reads(server: RunningServer) -> None:
    async def session(telemetry: TelemetryConnection) -> None:
        view = EngineView()
        await receive(telemetry)
        await complete(server, [*range(16), 3])
        block = await telemetry.describe_block(0)
        assert (block.state, block.text) == ("cached", "ABCDEFGHIJKLMNOP")
        await telemetry.change_settings(max_num_batched_tokens=33, itl_target_ms=7.5)
        await telemetry.reset_prefix_cache()
        assert (await telemetry.describe_block(0)).state == "free"
        async for message in telemetry:
            view.apply(message)
            if isinstance(message, TelemetryUpdate) and message.settings is not None:
                assert message.settings.max_num_batched_tokens == 33
                assert message.settings.itl_target_ms == 7.5
                break

    with_telemetry(server.url, session)


def test_a_command_that_is_refused_raises_why(server: RunningServer) -> None:
    async def session(telemetry: TelemetryConnection) -> None:
        await receive(telemetry)
        with pytest.raises(ServerError, match="there is no request 'nobody'") as refused:
            await telemetry.abort("nobody")
        assert refused.value.code == "request_not_found"
        with pytest.raises(ServerError, match="block must be between 0 and 63, got 64"):
            await telemetry.describe_block(64)
        with pytest.raises(ServerError, match="max_num_batched_tokens") as refused:
            await telemetry.change_settings(max_num_batched_tokens=0)
        assert refused.value.param == "max_num_batched_tokens"

    with_telemetry(server.url, session)


def test_a_running_request_is_aborted(server: RunningServer) -> None:
    server.runner.seconds = 0.002

    async def session(telemetry: TelemetryConnection) -> None:
        view = EngineView()
        asking = asyncio.create_task(complete(server, [1, 2, 3], 450))
        while not view.requests:
            view.apply(await receive(telemetry))
        (record,) = view.requests.values()
        await telemetry.abort(record.id)
        while record.finish_reason is None:
            view.apply(await receive(telemetry))
            (record,) = view.requests.values()
        assert record.finish_reason == "abort"
        await asking

    with_telemetry(server.url, session)


def test_other_wishes_hold_for_later_connections_too(server: RunningServer) -> None:
    with Cuttable(server.port) as relay:

        async def session(telemetry: TelemetryConnection) -> None:
            first = await receive(telemetry)
            assert isinstance(first, TelemetrySnapshot)
            assert (first.owners, first.blocks is None) == (None, False)
            await telemetry.subscribe(events=["request"], owners=True)
            second = await receive(telemetry)
            assert isinstance(second, TelemetrySnapshot)
            assert (second.blocks, second.requests) == (None, [])
            relay.cut()
            third = await receive(telemetry)
            assert isinstance(third, TelemetrySnapshot)
            assert third.blocks is None

        with_telemetry(relay.url, session)


def test_a_command_without_a_connection_says_so(server: RunningServer) -> None:
    with Cuttable(server.port) as relay:
        lost = asyncio.Event()

        async def session(telemetry: TelemetryConnection) -> None:
            await receive(telemetry)
            relay.refusing = True
            relay.cut()
            await asyncio.wait_for(lost.wait(), PATIENCE)
            with pytest.raises(ConnectionLostError, match="no connection"):
                await telemetry.describe_block(0)

        with_telemetry(relay.url, session, on_connection=lambda there: there or lost.set())


def test_a_command_whose_answer_is_cut_off_says_so(server: RunningServer) -> None:
    server.runner.gate.clear()
    with Cuttable(server.port) as relay:

        async def session(telemetry: TelemetryConnection) -> None:
            await receive(telemetry)
            asking = asyncio.create_task(complete(server, [1, 2, 3]))
            while server.runner.fake.steps == 0 and not server.state.engine.stuck_for():
                await asyncio.sleep(0.002)
            answer = asyncio.create_task(telemetry.describe_block(0))  # waits for the end of the step
            await asyncio.sleep(0.02)
            relay.cut()
            with pytest.raises(ConnectionLostError, match="before the answer came"):
                await answer
            server.runner.gate.set()
            await asking

        with_telemetry(relay.url, session)


def test_who_reads_nothing_still_gets_the_answers_of_commands(server: RunningServer) -> None:
    async def session(telemetry: TelemetryConnection) -> None:
        await receive(telemetry)
        for number in range(2 * MAX_UNREAD):
            await complete(server, [number % 20])
        assert (await telemetry.describe_block(0)).block == 0

    with_telemetry(server.url, session)


def test_attempts_end_when_they_are_used_up() -> None:
    failures: list[int] = []

    async def session(telemetry: TelemetryConnection) -> None:
        with pytest.raises(ConnectionFailedError, match="in 3 attempts"):
            await receive(telemetry)

    with_telemetry(
        "http://127.0.0.1:9",
        session,
        backoff=Backoff(first=0.001, longest=0.002, attempts=3),
        on_failure=lambda number, error: failures.append(number),
    )
    assert failures == [1, 2, 3]


def test_wishes_that_the_server_refuses_end_the_iteration_with_the_reason(server: RunningServer) -> None:
    async def session(telemetry: TelemetryConnection) -> None:
        with pytest.raises(ServerError, match="rate must be between"):
            await receive(telemetry)

    with_telemetry(server.url, session, rate=1000.0)


def test_a_wrong_key_ends_the_attempts() -> None:
    with RunningServer(config={"api_keys": ("secret",)}) as server:

        async def refused(telemetry: TelemetryConnection) -> None:
            with pytest.raises(ServerError, match="401"):
                await receive(telemetry)

        async def welcome(telemetry: TelemetryConnection) -> None:
            assert isinstance(await receive(telemetry), TelemetrySnapshot)

        with_telemetry(server.url, refused, api_key="wrong")
        with_telemetry(server.url, welcome, api_key="secret")


def test_a_server_that_closes_at_once_is_not_rushed() -> None:
    """After each connection that brought nothing there is a wait, and a longer one after more."""
    waits: list[float] = []

    class Counted(Backoff):
        def delay(self, failures: int) -> float:
            waits.append(failures)
            return 0.001

    async def main() -> None:
        async def close(connection: ServerConnection) -> None:
            await connection.close()

        async with serve(close, "127.0.0.1", 0) as listener:
            port = next(iter(listener.sockets)).getsockname()[1]
            async with TelemetryConnection(f"http://127.0.0.1:{port}", backoff=Counted(attempts=None)):
                while len(waits) < 4:
                    await asyncio.sleep(0.002)

    asyncio.run(main())
    assert waits[:4] == [1, 2, 3, 4]


def test_iteration_ends_when_the_connection_is_closed(server: RunningServer) -> None:
    async def session(telemetry: TelemetryConnection) -> None:
        await receive(telemetry)
        await telemetry.close()
        assert [message async for message in telemetry] == []
        await telemetry.close()

    with_telemetry(server.url, session)
