"""A client of `/v1/responses`: any number of responses at once over one websocket."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import AsyncIterator, Callable
from types import TracebackType
from typing import Any

from websockets.asyncio.client import ClientConnection
from websockets.exceptions import ConnectionClosed

from cudaprefill.client.connection import Backoff, open_connection, websocket_url
from cudaprefill.client.errors import ClientError, ConnectionLostError, ServerError
from cudaprefill.protocol.codec import build, encode, parse_object
from cudaprefill.protocol.responses import (
    SERVER_MESSAGES,
    ErrorEvent,
    InputMessage,
    InputText,
    OutputTextDelta,
    Response,
    ResponseCancel,
    ResponseCompleted,
    ResponseCreate,
    ResponseCreated,
    ResponseFailed,
    ResponseIncomplete,
    ServerMessage,
)

# Text, or messages: {"role": ..., "content": text}, or what `InputMessage` is.
Input = str | list[dict[str, Any]] | list[InputMessage]


class AsyncClient:
    """Connects when it is first needed, and again whenever the connection breaks.

    async with AsyncClient("http://localhost:8000") as client:
        async with client.respond("Hello") as response:
            async for text in response:
                print(text, end="")
        print(response.result.usage)

    url: the server's, as http(s):// or ws(s)://.
    on_connection_change: is told True when a connection is there and False when it breaks.
    Belongs to one event loop.
    """

    def __init__(
        self,
        url: str,
        api_key: str | None = None,
        *,
        backoff: Backoff | None = None,
        open_timeout: float = 10.0,
        on_connection_change: Callable[[bool], None] | None = None,
    ) -> None:
        self.url = websocket_url(url, "/v1/responses")
        self._api_key = api_key
        self._backoff = Backoff() if backoff is None else backoff
        self._open_timeout = open_timeout
        self._on_connection_change = on_connection_change
        self._connecting = asyncio.Lock()
        self._connection: ClientConnection | None = None
        self._reader: asyncio.Task[None] | None = None
        self._under_way: dict[str, ResponseStream] = {}
        self._numbers = itertools.count()
        self._closed = False

    @property
    def connected(self) -> bool:
        return self._connection is not None

    async def connect(self) -> None:
        """Only to know early whether the server is there; `respond` connects by itself.

        Raises ConnectionFailedError, or ServerError where the server refuses the connection.
        """
        await self._connected()

    def respond(
        self,
        input: Input | None = None,
        *,
        instructions: str | None = None,
        previous_response_id: str | None = None,
        **fields: Any,
    ) -> ResponseStream:
        """Asks for a response; use it with `async with`, and iterate over it for its text.

        fields: any other field of `ResponseCreate`: max_output_tokens, temperature, top_p, top_k, seed, stop, store,
            generate, metadata, priority, ... Raises ValueError naming one that is not known or of a wrong type.
        """
        given = {
            "input": input,
            "instructions": instructions,
            "previous_response_id": previous_response_id,
            **fields,
        }
        return ResponseStream(self, _create(given, f"s{next(self._numbers)}"))

    async def close(self) -> None:
        """Ends what is under way, with ConnectionLostError for whoever waits for it. Harmless when repeated."""
        self._closed = True
        if self._connection is not None:
            await self._connection.close()
        if self._reader is not None:
            await self._reader

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def _connected(self) -> ClientConnection:
        async with self._connecting:
            if self._closed:
                raise ClientError("the client is closed")
            if self._connection is None:
                connection = await open_connection(
                    self.url, self._api_key, self._backoff, open_timeout=self._open_timeout
                )
                self._connection = connection
                self._reader = asyncio.create_task(self._read(connection))
                self._tell(True)
            return self._connection

    async def _read(self, connection: ClientConnection) -> None:
        reason = "the connection was closed"
        try:
            async for text in connection:
                fields = parse_object(text if isinstance(text, str) else text.decode())
                kind = SERVER_MESSAGES.get(str(fields.get("type")))
                if kind is not None:  # a newer server may have more to tell
                    self._dispatch(build(kind, fields))
        except ConnectionClosed as error:
            reason = f"the connection broke: {error}"
        except ValueError as error:
            reason = f"the server sent what cannot be understood: {error}"
            await connection.close(1002)
        finally:
            self._connection = None
            for stream in list(self._under_way.values()):
                stream._lose(reason)
            self._under_way.clear()
            self._tell(False)

    def _dispatch(self, message: ServerMessage) -> None:
        """To the response it is about. Without a lane it is about no response in particular: all of ours have one."""
        stream = self._under_way.get(message.stream_id or "")
        if stream is not None and stream._take(message):
            del self._under_way[message.stream_id or ""]

    async def _start(self, stream: ResponseStream, create: ResponseCreate) -> None:
        assert create.stream_id is not None
        while True:
            connection = await self._connected()
            self._under_way[create.stream_id] = stream
            try:
                await connection.send(encode(create))
                return
            except ConnectionClosed:
                # Nothing was answered yet, so a new connection may try again.
                self._under_way.pop(create.stream_id, None)
                if self._reader is not None:
                    await self._reader

    async def _cancel(self, stream_id: str) -> None:
        """Asks once; what still comes is dropped by the stream."""
        if self._connection is not None and stream_id in self._under_way:
            with contextlib.suppress(ConnectionClosed):
                await self._connection.send(encode(ResponseCancel(stream_id=stream_id)))

    def _tell(self, connected: bool) -> None:
        if self._on_connection_change is not None:
            self._on_connection_change(connected)


class ResponseStream:
    """One response: `async with` sends the request, and leaving early cancels it. Iterate for its text.

    Text that came while nobody asked is given in one piece. Raises RuntimeError outside of `async with`, ServerError
    where the server refuses the request or the response fails, ConnectionLostError where the connection breaks.

    id: the response's, once the server has taken the request.
    text: all that has come so far.
    """

    def __init__(self, client: AsyncClient, create: ResponseCreate) -> None:
        self.id: str | None = None
        self.text = ""
        self._client = client
        self._create = create
        self._name = create.stream_id or ""
        self._asked = False
        self._given = 0  # characters of `text` that the iteration has given
        self._result: Response | None = None
        self._error: ClientError | None = None
        self._news = asyncio.Event()

    @property
    def result(self) -> Response:
        """The whole response, with usage and metrics. Raises ClientError while it is not there."""
        if self._error is not None:
            raise self._error
        if self._result is None:
            raise ClientError(f"{self} has not ended")
        return self._result

    @property
    def ended(self) -> bool:
        return self._result is not None or self._error is not None

    async def wait(self) -> Response:
        """Until the end; returns `result`."""
        async for _ in self:
            pass
        return self.result

    async def cancel(self) -> None:
        """Asks the server to end it; iteration goes on to the end, and `result.status` says "cancelled"."""
        if not self.ended:
            await self._client._cancel(self._name)

    async def __aenter__(self) -> ResponseStream:
        await self._client._start(self, self._create)
        self._asked = True
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self.cancel()

    async def __aiter__(self) -> AsyncIterator[str]:
        if not self._asked:
            raise RuntimeError(
                "a response is asked for by `with client.respond(...) as response`, and this one was not"
            )
        while True:
            if self._given < len(self.text):
                news, self._given = self.text[self._given :], len(self.text)
                yield news
            elif self._error is not None:
                raise self._error
            elif self._result is not None:
                return
            else:
                self._news.clear()
                await self._news.wait()

    def __str__(self) -> str:
        return "a response that the server has not taken yet" if self.id is None else f"response {self.id}"

    def _take(self, message: ServerMessage) -> bool:
        """Whether this was the last one."""
        if isinstance(message, OutputTextDelta):
            self.text += message.delta
        elif isinstance(message, ResponseCreated):
            self.id = message.response.id
        elif isinstance(message, ResponseFailed):
            error = message.response.error
            reason = "no reason was given" if error is None else error.message
            self._error = ServerError(f"{self} failed: {reason}", code=None if error is None else error.code)
        elif isinstance(message, (ResponseCompleted, ResponseIncomplete)):
            self._result = message.response
        elif isinstance(message, ErrorEvent):
            told = message.error
            self._error = ServerError(told.message, status=message.status, code=told.code, param=told.param)
        self._news.set()
        return self.ended

    def _lose(self, reason: str) -> None:
        self._error = ConnectionLostError(f"{self} is lost: {reason}")
        self._news.set()


def _create(given: dict[str, Any], stream_id: str) -> ResponseCreate:
    if "stream_id" in given:
        raise ValueError("stream_id is the client's to choose")
    unknown = given.keys() - ResponseCreate.__dataclass_fields__.keys()
    if unknown:
        raise ValueError(f"{', '.join(sorted(unknown))}: no such field of a response")
    if isinstance(given["input"], list):
        given["input"] = [_message(item) for item in given["input"]]
    return build(ResponseCreate, {**given, "stream_id": stream_id})


def _message(item: object) -> object:
    if not isinstance(item, InputMessage):
        return item
    content = item.content
    if not isinstance(content, str):
        content = [{"type": part.type, "text": part.text} for part in content if isinstance(part, InputText)]  # type: ignore[misc]
    return {"role": item.role, "content": content}
