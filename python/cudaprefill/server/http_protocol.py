"""uvicorn's HTTP protocol, with bounds on what it takes that is no body, and on what it takes in advance."""

from __future__ import annotations

import time
from typing import Any

from starlette.requests import HTTPConnection
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

MAX_HEAD_SIZE = 64 * 1024  # bytes of a request's line and headers, and of what else is no body
MAX_PIPELINED = 16  # requests that are read ahead of the answers to earlier ones
_RECEIVED = "received"  # in the scope's state


class HttpProtocol(HttpToolsProtocol):
    """Does not take what is no body without end: lines and headers, chunk extensions, trailers.

    Where a client sends requests without waiting for answers, all of them hear of it when the client goes.
    """

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._unanswered: list[RequestResponseCycle] = []
        self._head_is_done = False
        self._beside_body = 0  # bytes that came since the last piece of a body, or the last request's end

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self._head_is_done:  # trailers are for nobody here
            super().on_header(name, value)

    def on_message_begin(self) -> None:
        self._head_is_done = False
        super().on_message_begin()
        self.scope["state"][_RECEIVED] = time.monotonic()

    def on_headers_complete(self) -> None:
        self._head_is_done = True
        super().on_headers_complete()
        self._unanswered = [cycle for cycle in (*self._unanswered, self.cycle) if cycle and not cycle.response_complete]
        if len(self._unanswered) < MAX_PIPELINED:
            self.flow.resume_reading()  # or nobody would notice when the client goes

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        for cycle in self._unanswered:
            cycle.disconnected = True
            cycle.message_event.set()

    def on_body(self, body: bytes) -> None:
        self._beside_body = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._beside_body = 0
        super().on_message_complete()

    def data_received(self, data: bytes) -> None:
        self._beside_body += len(data)
        super().data_received(data)
        if self._beside_body > MAX_HEAD_SIZE and not self.transport.is_closing():
            self.send_400_response(f"The head of the request is longer than {MAX_HEAD_SIZE} bytes.")


def received_time(request: HTTPConnection) -> float:
    """When the first byte of a request was read, seconds of time.monotonic(); now, where another protocol read it."""
    received: float = getattr(request.state, _RECEIVED, None) or time.monotonic()
    return received
