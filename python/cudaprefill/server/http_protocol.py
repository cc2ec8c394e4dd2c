"""uvicorn's HTTP protocol, with bounds: on connections, on how long a request may take to come, on what it may hold."""

from __future__ import annotations

import asyncio
import json
import time
from http import HTTPStatus
from typing import Any

from starlette.requests import HTTPConnection
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from cudaprefill.server.errors import RETRY_AFTER, ApiError

MAX_HEAD_SIZE = 64 * 1024  # bytes of a request's line and headers, and of what else is no body
MAX_PIPELINED = 16  # requests that are read ahead of the answers to earlier ones
_RECEIVED = "received"  # in the scope's state


class HttpProtocol(HttpToolsProtocol):
    """Does not take what is no body without end (lines and headers, chunk extensions, trailers), nor wait for ever.

    Where a client sends requests without waiting for answers, all of them hear of it when the client goes.

    max_connections: of all clients; who comes when there are so many is told so and sent away. None: any number.
    receive_timeout: seconds from the connection, or from a request's first byte, until the request is whole.
    """

    def __init__(self, *args: Any, max_connections: int | None, receive_timeout: float, **options: Any) -> None:
        super().__init__(*args, **options)
        self._max_connections = max_connections
        self._receive_timeout = receive_timeout
        self._deadline: asyncio.TimerHandle | None = None  # for the request that is coming
        self._unanswered: list[RequestResponseCycle] = []
        self._head_is_done = False  # of the request that is coming
        self._beside_body = 0  # bytes that came since the last piece of a body, or the last request's end

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        most = self._max_connections
        if most is not None and len(self.connections) > most:
            self._refuse(
                ApiError(
                    503,
                    f"{most} connections are open, and max_connections is {most}",
                    code="too_many_connections",
                    headers=RETRY_AFTER,
                )
            )
        else:
            self._expect_request()

    def on_message_begin(self) -> None:
        self._expect_request()
        self._head_is_done = False
        super().on_message_begin()
        self.scope["state"][_RECEIVED] = time.monotonic()

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self._head_is_done:  # trailers are for nobody here
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        self._head_is_done = True
        super().on_headers_complete()
        self._unanswered = [cycle for cycle in (*self._unanswered, self.cycle) if cycle and not cycle.response_complete]
        if len(self._unanswered) < MAX_PIPELINED:
            self.flow.resume_reading()  # or nobody would notice when the client goes

    def on_body(self, body: bytes) -> None:
        self._beside_body = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._beside_body = 0
        self._head_is_done = False
        self._expect_nothing()
        super().on_message_complete()

    def data_received(self, data: bytes) -> None:
        if self.transport.is_closing():  # TLS still hands over what it has: nobody is there to hear an answer
            return
        self._beside_body += len(data)
        super().data_received(data)
        if self._beside_body > MAX_HEAD_SIZE and not self.transport.is_closing():
            self.send_400_response(f"The head of the request is longer than {MAX_HEAD_SIZE} bytes.")
        if self._deadline is None and self._is_quiet:  # an empty line between two requests ends uvicorn's own wait
            self._expect_request()

    def handle_websocket_upgrade(self) -> None:
        self._expect_nothing()
        super().handle_websocket_upgrade()

    def connection_lost(self, exc: Exception | None) -> None:
        self._expect_nothing()
        super().connection_lost(exc)
        for cycle in self._unanswered:
            cycle.disconnected = True
            cycle.message_event.set()

    def send_400_response(self, msg: str) -> None:
        self._refuse(ApiError(400, msg))

    @property
    def _is_quiet(self) -> bool:
        """Whether this protocol still has the connection, and nobody works for it."""
        return self.transport.get_protocol() is self and all(cycle.response_complete for cycle in self._unanswered)

    def _expect_request(self) -> None:
        self._expect_nothing()
        self._deadline = self.loop.call_later(self._receive_timeout, self._on_deadline)

    def _expect_nothing(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _on_deadline(self) -> None:
        coming = self.cycle if self._head_is_done else None
        if self.flow.read_paused or any(c is not coming and not c.response_complete for c in self._unanswered):
            self._expect_request()  # it is we who let the client wait
        elif coming is not None and coming.response_started:
            self.transport.close()
        else:
            message = f"the request was not whole after {self._receive_timeout:g} seconds"
            self._refuse(ApiError(408, message, code="request_timeout"))

    def _refuse(self, error: ApiError) -> None:
        """Ends the connection with an answer of its own."""
        body = json.dumps(error.body).encode()
        headers = {
            "content-type": "application/json",
            "content-length": str(len(body)),
            "connection": "close",
            **error.headers,
        }
        head = [f"HTTP/1.1 {error.status} {HTTPStatus(error.status).phrase}"]
        head += [f"{name}: {value}" for name, value in headers.items()]
        self._expect_nothing()
        self.transport.write("\r\n".join([*head, "", ""]).encode() + body)
        self.transport.close()


def received_time(request: HTTPConnection) -> float:
    """When the first byte of a request was read, seconds of time.monotonic(); now, where another protocol read it."""
    received: float = getattr(request.state, _RECEIVED, None) or time.monotonic()
    return received
