"""`/v1/responses` as a websocket: many responses at once over one connection, each on a lane of its own.

    receive loop ─▶ lane "a" ─▶ task: RunningResponse.events() ─▶ send
                 ─▶ lane "b" ─▶ task: ...
                 ─▶ error events for what cannot be understood

A lane answers one request at a time. Requests on a named lane wait for their turn; one without a `stream_id` is refused
while another without runs, because their events could not be told apart.

Each task takes the next delta only after the socket took the last event. So while a reader is slow, deltas gather in
the engine's stream, which merges them and gives up on the request when they grow too large.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import deque
from collections.abc import Callable
from typing import Any, TypeVar

from starlette.websockets import WebSocket, WebSocketDisconnect

from cudaprefill.protocol.codec import ProtocolError, build, encode, parse_object
from cudaprefill.protocol.responses import (
    CLIENT_MESSAGES,
    ErrorBody,
    ErrorEvent,
    ResponseCancel,
    ResponseCreate,
    ServerMessage,
)
from cudaprefill.sampling_params import show
from cudaprefill.server.errors import ApiError
from cudaprefill.server.responses.errors import response_error
from cudaprefill.server.responses.parse import parse_create
from cudaprefill.server.responses.service import ResponsesService, RunningResponse
from cudaprefill.server.responses.store import ResponseStore

Result = TypeVar("Result")

# Below this many characters parsing takes less time than a thread would take to start on it.
SMALL_MESSAGE = 16 * 1024
# Turns with `store: false` that one connection can go on from.
SESSION_TURNS = 64


async def respond(websocket: WebSocket) -> None:
    """The endpoint."""
    await websocket.accept()
    await Session(websocket, ResponsesService.of(websocket)).run()


class Session:
    """One connection. When it ends, so does all that it asked for."""

    def __init__(self, websocket: WebSocket, service: ResponsesService) -> None:
        config = service.state.config
        self._websocket = websocket
        self._service = service
        self._store = ResponseStore(SESSION_TURNS, config.max_stored_response_bytes)
        self._max_responses = config.max_responses_per_connection
        self._lanes: dict[str | None, deque[RunningResponse]] = {}  # the first of each runs
        self._tasks: set[asyncio.Task[None]] = set()  # one a lane

    async def run(self) -> None:
        """Until the client goes."""
        try:
            while True:
                message = await self._websocket.receive()
                if message["type"] == "websocket.disconnect":
                    return
                await self._take(message.get("text"), time.monotonic())
        except ClientGoneError:
            pass
        finally:
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
            for lane in self._lanes.values():
                for running in lane:
                    running.close()

    async def _take(self, text: str | None, arrival_time: float) -> None:
        """What cannot be understood is answered with one error event."""
        stream_id: str | None = None
        try:
            if text is None:
                raise ProtocolError("a message must be JSON in a text frame, got a binary frame")
            fields = await self._off_the_loop(parse_object, text, len(text))
            kind = fields.get("type")
            if isinstance(fields.get("stream_id"), str):
                stream_id = fields["stream_id"]
            if not isinstance(kind, str) or kind not in CLIENT_MESSAGES:
                raise ProtocolError(f"type must be one of {', '.join(CLIENT_MESSAGES)}, got {show(kind)}", "type")
            if kind == "response.create":
                create = await self._off_the_loop(parse_create, fields, len(text))
                self._create(create, len(text), arrival_time)
            else:
                self._cancel(build(ResponseCancel, fields))
        except Exception as error:
            await self._refuse(error, stream_id)

    def _create(self, create: ResponseCreate, size: int, arrival_time: float) -> None:
        under_way = sum(map(len, self._lanes.values()))
        if under_way >= self._max_responses:
            raise ApiError(
                429,
                f"{under_way} responses are under way on this connection, and {self._max_responses} are the limit",
                code="websocket_stream_limit_reached",
            )
        lane = self._lanes.get(create.stream_id)
        if lane is not None and create.stream_id is None:
            raise ApiError(
                400,
                "a response without stream_id is under way: wait for its end, or give this one a stream_id",
                param="stream_id",
                code="response_in_progress",
            )
        running = self._service.start(create, size, arrival_time, create.stream_id, self._store)
        if lane is not None:
            lane.append(running)
            return
        self._lanes[create.stream_id] = deque([running])
        task = asyncio.create_task(self._work(create.stream_id))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _cancel(self, cancel: ResponseCancel) -> None:
        """By lane: what runs there and all that wait there. Only responses of this connection."""
        if (cancel.response_id is None) == (cancel.stream_id is None):
            raise ProtocolError("response.cancel needs either response_id or stream_id", "response_id")
        if cancel.stream_id is not None:
            targets = list(self._lanes.get(cancel.stream_id, ()))
        else:
            everything = [running for lane in self._lanes.values() for running in lane]
            targets = [running for running in everything if running.id == cancel.response_id]
        if not targets:
            raise ApiError(
                404,
                f"{show(cancel.stream_id or cancel.response_id)} is not under way on this connection",
                param="response_id" if cancel.stream_id is None else "stream_id",
                code="response_not_found",
            )
        for running in targets:
            running.cancel()

    async def _work(self, stream_id: str | None) -> None:
        """One request of a lane after the other."""
        lane = self._lanes[stream_id]
        with contextlib.suppress(ClientGoneError):
            while lane:
                running = lane[0]
                try:
                    async with contextlib.aclosing(running.events()) as events:
                        async for event in events:
                            await self._send(event)
                except ClientGoneError:
                    raise
                except Exception as error:
                    await self._refuse(error, stream_id)
                finally:
                    running.close()
                lane.popleft()
            del self._lanes[stream_id]

    async def _refuse(self, error: Exception, stream_id: str | None) -> None:
        if isinstance(error, ClientGoneError):
            raise error
        told = response_error(error)
        body = ErrorBody(type=told.type, code=told.code, message=told.message, param=told.param)
        await self._send(ErrorEvent(status=told.status, error=body, stream_id=stream_id))

    async def _send(self, message: ServerMessage) -> None:
        text = encode(message)
        try:
            await self._websocket.send_text(text)
        except (WebSocketDisconnect, RuntimeError):  # Starlette's two ways to say so
            raise ClientGoneError from None

    async def _off_the_loop(self, function: Callable[[Any], Result], argument: Any, size: int) -> Result:
        if size <= SMALL_MESSAGE:
            return function(argument)
        executor = self._service.state.executor_for(size)
        return await asyncio.get_running_loop().run_in_executor(executor, function, argument)


class ClientGoneError(Exception):
    """There is nobody to send to any more."""
