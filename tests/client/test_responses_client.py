"""The clients of `/v1/responses`: several answers over one connection, clear errors, and connections that come back."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cudaprefill.client import (
    AsyncClient,
    Backoff,
    Client,
    ClientError,
    ConnectionFailedError,
    ConnectionLostError,
    ServerError,
)
from cudaprefill.client.connection import websocket_url
from cudaprefill.protocol.responses import InputMessage, InputText
from tests.client.cuttable import Cuttable
from tests.server.chat_server import ChatServer, chat_server
from tests.server.running import PATIENCE

ASK: dict[str, Any] = {"temperature": 0, "ignore_eos": True, "max_output_tokens": 20}
ENDLESS: dict[str, Any] = ASK | {"max_output_tokens": 400}
QUICK = Backoff(first=0.005, longest=0.02, attempts=400)


@pytest.fixture
def server() -> Iterator[ChatServer]:
    yield from chat_server()


def with_client(url: str, session: Callable[[AsyncClient], Awaitable[None]], **options: Any) -> None:
    async def main() -> None:
        async with AsyncClient(url, **options) as client:
            await session(client)

    asyncio.run(main())


async def until(condition: Callable[[], bool]) -> None:
    give_up = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < give_up
        await asyncio.sleep(0.002)


def test_what_was_never_asked_for_is_not_waited_for(server: ChatServer) -> None:
    async def session(client: AsyncClient) -> None:
        with pytest.raises(RuntimeError, match="asked for by `with"):
            await client.respond("hello", **ASK).wait()

    with_client(server.url, session)
    with Client(server.url) as client, pytest.raises(RuntimeError, match="asked for by `with"):
        client.respond("hello", **ASK).wait()


def test_text_comes_as_it_is_made_and_the_result_holds_all_of_it(server: ChatServer) -> None:
    async def session(client: AsyncClient) -> None:
        async with client.respond("hello", instructions="be brief", **ASK) as response:
            pieces = [text async for text in response]
        result = response.result
        assert "".join(pieces) == response.text == result.output_text
        assert len(pieces) > 1
        assert response.id == result.id
        assert result.instructions == "be brief"
        assert result.usage is not None
        assert result.usage.output_tokens == 20
        assert result.metrics is not None
        assert result.metrics.ttft is not None

    server.runner.seconds = 0.001
    with_client(server.url, session)


def test_the_synchronous_client_gives_the_same(server: ChatServer) -> None:
    async def session(client: AsyncClient) -> None:
        async with client.respond("hello", **ASK) as response:
            texts.append((await response.wait()).output_text)

    texts: list[str] = []
    with_client(server.url, session)
    with Client(server.url) as client:
        with client.respond("hello", **ASK) as response:
            texts.append("".join(response))
        with client.respond("again", previous_response_id=response.id, **ASK) as following:
            assert following.wait().previous_response_id == response.id
        with pytest.raises(ServerError, match="min_p"), client.respond("hello", min_p=2.0) as refused:
            refused.wait()
    assert texts[0] == texts[1]


def test_the_synchronous_client_serves_several_threads(server: ChatServer) -> None:
    texts: dict[int, str] = {}
    with Client(server.url) as client:

        def ask(number: int) -> None:
            with client.respond("a" * (1 + number), **ASK) as response:
                texts[number] = response.wait().output_text

        threads = [threading.Thread(target=ask, args=(number,)) for number in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert len(set(texts.values())) == 6


def test_several_responses_share_one_connection(server: ChatServer) -> None:
    async def session(client: AsyncClient) -> None:
        async def ask(word: str) -> str:
            async with client.respond(word, **ASK) as response:
                return (await response.wait()).output_text

        words = [chr(97 + number) * 3 for number in range(10)]
        together = await asyncio.gather(*map(ask, words))
        assert together == [await ask(word) for word in words]

    with Cuttable(server.port) as relay:
        with_client(relay.url, session)
        assert relay.accepted == 1


def test_messages_may_be_dicts_or_data_classes(server: ChatServer) -> None:
    async def session(client: AsyncClient) -> None:
        texts = []
        for messages in (
            [{"role": "user", "content": "hello"}],
            [InputMessage(role="user", content="hello")],
            [InputMessage(role="user", content=[InputText(type="input_text", text="hello")])],
        ):
            async with client.respond(messages, **ASK) as response:
                texts.append((await response.wait()).output_text)
        assert len(set(texts)) == 1

    with_client(server.url, session)


def test_leaving_early_cancels(server: ChatServer) -> None:
    async def session(client: AsyncClient) -> None:
        async with client.respond("hello", **ENDLESS) as response:
            async for _ in response:
                break
            with pytest.raises(ClientError, match="has not ended"):
                _ = response.result
        await until(lambda: response.ended)
        assert response.result.status == "cancelled"
        assert server.runner.fake.steps < 300

    server.runner.seconds = 0.002
    with_client(server.url, session)


def test_a_cancelled_response_ends_with_what_came(server: ChatServer) -> None:
    async def session(client: AsyncClient) -> None:
        async with client.respond("hello", **ENDLESS) as response:
            async for _ in response:
                await response.cancel()
        assert response.result.status == "cancelled"
        assert response.result.output_text == response.text

    server.runner.seconds = 0.002
    with_client(server.url, session)


def test_refusals_carry_status_code_and_param(server: ChatServer) -> None:
    async def session(client: AsyncClient) -> None:
        with pytest.raises(ServerError, match="not found") as refused:
            async with client.respond("hello", previous_response_id="resp_none") as response:
                await response.wait()
        assert (refused.value.status, refused.value.code) == (400, "previous_response_not_found")
        assert refused.value.param == "previous_response_id"
        async with client.respond("hello", **ASK) as response:  # the connection goes on
            await response.wait()

    with_client(server.url, session)


def test_a_response_that_fails_raises_what_the_server_says(server: ChatServer) -> None:
    async def session(client: AsyncClient) -> None:
        async with client.respond("hello", **ENDLESS) as response:
            await anext(aiter(response))
            server.runner.fake.fails = RuntimeError("boom")
            with pytest.raises(ServerError, match=rf"response {response.id} failed: .*boom") as failed:
                await response.wait()
            assert failed.value.code == "engine_dead"

    server.runner.seconds = 0.002
    with_client(server.url, session)
    server.wait_until(server.state.died.is_set)


@pytest.mark.parametrize(
    ("fields", "reason"),
    [({"no_such": 1}, "no_such"), ({"top_k": "x"}, "top_k"), ({"stream_id": "x"}, "stream_id")],
)
def test_fields_that_do_not_exist_are_refused_before_anything_is_sent(fields: dict[str, Any], reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        AsyncClient("http://127.0.0.1:1").respond("hello", **fields)


# --- Connections ---


def test_a_broken_connection_loses_its_responses_and_new_ones_wait_for_the_next(server: ChatServer) -> None:
    changes: list[bool] = []

    async def session(client: AsyncClient) -> None:
        async with client.respond("hello", **ENDLESS) as response:
            await anext(aiter(response))
            relay.refusing = True
            relay.cut()
            with pytest.raises(ConnectionLostError, match=f"response {response.id} is lost"):
                await response.wait()
        await until(lambda: server.state.in_flight == 0)
        asking = asyncio.create_task(_ask(client))
        await until(lambda: relay.accepted >= 3)
        assert not asking.done()
        relay.refusing = False
        assert await asking == "incomplete"

    async def _ask(client: AsyncClient) -> str:
        async with client.respond("hello", **ASK) as response:
            return (await response.wait()).status

    server.runner.seconds = 0.002
    with Cuttable(server.port) as relay:
        with_client(relay.url, session, backoff=QUICK, on_connection_change=changes.append)
    assert changes == [True, False, True, False]


def test_a_server_that_is_not_there_is_given_up_after_the_attempts() -> None:
    async def session(client: AsyncClient) -> None:
        with pytest.raises(ConnectionFailedError, match="3 attempts"):
            async with client.respond("hello"):
                pass

    with Cuttable(1) as relay:
        relay.refusing = True
        with_client(relay.url, session, backoff=Backoff(first=0.001, longest=0.001, attempts=3))
        assert relay.accepted == 3


def test_a_wrong_key_is_told_at_once() -> None:
    async def session(client: AsyncClient) -> None:
        with pytest.raises(ServerError, match="401") as refused:
            await client.connect()
        assert refused.value.status == 401

    async def right(client: AsyncClient) -> None:
        await client.connect()
        assert client.connected

    with ChatServer(config={"api_keys": ("sesame",)}) as server:
        with_client(server.url, session, api_key="wrong")
        with_client(server.url, right, api_key="sesame")


def test_closing_the_client_ends_what_is_under_way(server: ChatServer) -> None:
    async def main() -> None:
        client = AsyncClient(server.url)
        async with client.respond("hello", **ENDLESS) as response:
            await anext(aiter(response))
            await client.close()
            with pytest.raises(ConnectionLostError):
                await response.wait()
        with pytest.raises(ClientError, match="closed"):
            async with client.respond("hello"):
                pass
        await client.close()

    server.runner.seconds = 0.002
    asyncio.run(main())


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("http://localhost:8000", "ws://localhost:8000/v1/responses"),
        ("http://localhost:8000/", "ws://localhost:8000/v1/responses"),
        ("https://host/v1", "wss://host/v1/responses"),
        ("wss://host/base/v1/", "wss://host/base/v1/responses"),
        ("ws://host/v1/responses", "ws://host/v1/responses"),
    ],
)
def test_the_address_of_the_websocket_follows_from_the_servers(url: str, expected: str) -> None:
    assert websocket_url(url, "/v1/responses") == expected


@pytest.mark.parametrize("url", ["localhost:8000", "ftp://host", "", "http://"])
def test_an_address_that_is_none_is_refused(url: str) -> None:
    with pytest.raises(ValueError, match="url must be"):
        websocket_url(url, "/v1/responses")


@given(st.integers(1, 10_000), st.floats(0.001, 1.0), st.floats(1.0, 100.0))
def test_waits_grow_and_are_bounded(failures: int, first: float, longest: float) -> None:
    delay = Backoff(first=first, longest=longest).delay(failures)
    assert 0 < delay <= longest
    assert delay >= min(longest, first * 2 ** min(failures - 1, 30)) / 2


def test_the_client_loads_neither_torch_nor_the_engine() -> None:
    code = (
        "import sys, cudaprefill.client\n"
        "packages = {name.partition('.')[0] for name in sys.modules}\n"
        "loaded = packages & {'torch', 'transformers', 'starlette', 'uvicorn'}\n"
        "loaded |= {name for name in sys.modules if name.startswith('cudaprefill.engine')}\n"
        "sys.exit(str(loaded) if loaded else 0)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, env={"PYTHONPATH": ":".join(sys.path)})
