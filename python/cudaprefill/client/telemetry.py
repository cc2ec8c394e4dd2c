"""A client of `/v1/telemetry` that comes back by itself."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections import deque
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any

from websockets.asyncio.client import ClientConnection
from websockets.exceptions import ConnectionClosed

from cudaprefill.client.connection import Backoff, open_connection, websocket_url
from cudaprefill.client.errors import ClientError, ConnectionLostError, ServerError
from cudaprefill.protocol.account import Account
from cudaprefill.protocol.codec import ProtocolError, decode, encode
from cudaprefill.protocol.itl_target import ItlTarget
from cudaprefill.protocol.telemetry import (
    DEFAULT_ITL_LIMIT_MS,
    DEFAULT_RATE,
    SERVER_MESSAGES,
    ClientMessage,
    TelemetryAbort,
    TelemetryAccount,
    TelemetryBlock,
    TelemetryChangeSettings,
    TelemetryDescribeBlock,
    TelemetryDone,
    TelemetryError,
    TelemetryExplain,
    TelemetryResetPrefixCache,
    TelemetrySnapshot,
    TelemetrySubscribe,
    TelemetryUpdate,
    Topic,
)

Answer = TelemetryBlock | TelemetryAccount | TelemetryDone
TOPICS: tuple[Topic, ...] = ("step", "request", "blocks")
WISH_ID = 0  # of the subscription that each connection begins with
MAX_UNREAD = 16  # messages that wait to be iterated over; then the server is left to merge what comes


class TelemetryConnection:
    """Iterate for snapshots and updates, in order. After a reconnect a snapshot makes up for what was missed.

        async with TelemetryConnection("http://127.0.0.1:8000") as telemetry:
            async for message in telemetry:
                view.apply(message)

    Commands may be awaited once a message has come, inside the loop too. They raise ServerError when the server
    refuses, and ConnectionLostError when there is no connection, or none any more, to carry the answer.
    Iteration ends after `close`. It raises ServerError or ConnectionFailedError when there is to be no other attempt.
    """

    def __init__(
        self,
        url: str,
        *,
        api_key: str | None = None,
        events: Sequence[Topic] = TOPICS,
        rate: float = DEFAULT_RATE,
        owners: bool = False,
        backoff: Backoff | None = None,
        on_connection: Callable[[bool], None] | None = None,
        on_failure: Callable[[int, Exception], None] | None = None,
    ) -> None:
        """Raises ValueError for a `url` that is none.

        backoff: between attempts; None tries for ever.
        on_connection: is told when the connection is there, and when it is lost.
        on_failure: is told of each attempt that failed, by its number in a row.
        """
        self._url = websocket_url(url, "/v1/telemetry")
        self._api_key = api_key
        self._wish = TelemetrySubscribe(events=list(events), rate=rate, owners=owners)
        self._backoff = Backoff(attempts=None) if backoff is None else backoff
        self._on_connection = on_connection or (lambda connected: None)
        self._on_failure = on_failure
        self._connection: ClientConnection | None = None
        self._task: asyncio.Task[None] | None = None
        self._messages: deque[TelemetrySnapshot | TelemetryUpdate] = deque()
        self._arrived = asyncio.Event()
        self._room = asyncio.Event()
        self._answers: dict[int, asyncio.Future[Answer]] = {}
        self._command_ids = itertools.count(1)
        self._error: ClientError | None = None
        self._ended = False

    async def __aenter__(self) -> TelemetryConnection:
        self._task = asyncio.create_task(self._run())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Harmless when repeated."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    def __aiter__(self) -> TelemetryConnection:
        return self

    async def __anext__(self) -> TelemetrySnapshot | TelemetryUpdate:
        while not self._messages:
            if self._error is not None:
                raise self._error
            if self._ended:
                raise StopAsyncIteration
            self._arrived.clear()
            await self._arrived.wait()
        self._room.set()
        return self._messages.popleft()

    # --- Commands ---

    async def subscribe(
        self, *, events: Sequence[Topic] | None = None, rate: float | None = None, owners: bool | None = None
    ) -> None:
        """Changes the wishes that are given; a snapshot follows. They hold for later connections, too."""
        wish = TelemetrySubscribe(
            events=self._wish.events if events is None else list(events),
            rate=self._wish.rate if rate is None else rate,
            owners=self._wish.owners if owners is None else owners,
        )
        if self._connection is not None:
            await self._command(wish)
        self._wish = wish

    async def describe_block(self, block: int) -> TelemetryBlock:
        answer = await self._command(TelemetryDescribeBlock(block=block))
        if not isinstance(answer, TelemetryBlock):
            raise ServerError(f"the server answered with {answer.type} instead of a block")
        return answer

    async def explain(self, request_id: str, *, itl_limit_ms: float = DEFAULT_ITL_LIMIT_MS) -> Account:
        """Where the time of a request went that runs or is among the last that ran."""
        answer = await self._command(TelemetryExplain(id=request_id, itl_limit_ms=itl_limit_ms))
        if not isinstance(answer, TelemetryAccount):
            raise ServerError(f"the server answered with {answer.type} instead of an account")
        return answer.account

    async def change_settings(
        self,
        *,
        max_num_batched_tokens: int | None = None,
        long_prefill_token_threshold: int | None = None,
        itl_target_ms: ItlTarget | None = None,
    ) -> None:
        """Changes those that are given; the next update has them all. An `itl_target_ms` of 0 takes it away."""
        await self._command(
            TelemetryChangeSettings(
                max_num_batched_tokens=max_num_batched_tokens,
                long_prefill_token_threshold=long_prefill_token_threshold,
                itl_target_ms=itl_target_ms,
            )
        )

    async def abort(self, request_id: str) -> None:
        await self._command(TelemetryAbort(id=request_id))

    async def reset_prefix_cache(self) -> None:
        await self._command(TelemetryResetPrefixCache())

    async def _command(self, message: ClientMessage) -> Answer:
        if self._connection is None:
            raise ConnectionLostError(f"there is no connection to {self._url} that could carry {message.type}")
        command_id = message.command_id = next(self._command_ids)
        answer = self._answers[command_id] = asyncio.get_running_loop().create_future()
        self._room.set()  # what is unread must not keep the answer out
        try:
            with contextlib.suppress(ConnectionClosed):  # then the answer says so
                await self._connection.send(encode(message))
            result: Answer = await answer
            return result
        finally:
            del self._answers[command_id]

    # --- The connection ---

    async def _run(self) -> None:
        try:
            in_vain = 0  # connections in a row that brought nothing: a server that closes at once is not to be rushed
            while True:
                in_vain = 0 if await self._stay_connected() else in_vain + 1
                if in_vain:
                    await asyncio.sleep(self._backoff.delay(in_vain))
        except ClientError as error:
            self._error = error
        finally:
            self._ended = True
            self._arrived.set()

    async def _stay_connected(self) -> bool:
        """To the end of one connection; whether it brought anything. Raises ServerError for wishes that are refused."""
        connection = await open_connection(self._url, self._api_key, self._backoff, on_failure=self._on_failure)
        self._connection = connection
        self._on_connection(True)
        received = False
        try:
            self._wish.command_id = WISH_ID
            await connection.send(encode(self._wish))
            async for text in connection:
                await self._receive(text)
                received = True
        except ConnectionClosed:
            pass
        finally:
            self._connection = None
            lost = ConnectionLostError(f"the connection to {self._url} was lost before the answer came")
            for answer in self._answers.values():
                if not answer.done():
                    answer.set_exception(lost)
            self._on_connection(False)
            await connection.close()
        return received

    async def _receive(self, text: str | bytes) -> None:
        try:
            message: Any = decode(text if isinstance(text, str) else "", SERVER_MESSAGES)
        except ProtocolError:
            return  # a server of another version may have more to say
        if isinstance(message, (TelemetrySnapshot, TelemetryUpdate)):
            await self._wait_for_room()
            self._messages.append(message)
            self._arrived.set()
            return
        answer = self._answers.get(message.command_id)
        if isinstance(message, TelemetryError):
            error = ServerError(message.message, code=message.code, param=message.param)
            if message.command_id == WISH_ID:
                raise error
            if answer is not None and not answer.done():
                answer.set_exception(error)
        elif answer is not None and not answer.done():
            answer.set_result(message)

    async def _wait_for_room(self) -> None:
        """Leaves what comes next in the socket while too much is unread, unless a command waits for its answer."""
        while len(self._messages) >= MAX_UNREAD and not self._answers:
            self._room.clear()
            await self._room.wait()
