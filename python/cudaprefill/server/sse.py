"""Server-sent events as OpenAI sends them."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable

from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from cudaprefill.server.disconnect import until_gone
from cudaprefill.server.errors import as_api_error

DONE = b"data: [DONE]\n\n"


class EventStream(Response):
    """Sends each of `events` as it comes; then, or after the event of the error that ended them, [DONE].

    `end` is called once when nothing more is sent, for whatever reason: it ends the work behind the events.
    """

    media_type = "text/event-stream"

    def __init__(self, events: AsyncIterator[bytes], end: Callable[[], None]) -> None:
        self.status_code = 200
        self.background = None
        # No proxy may keep events back to send several at once.
        self.init_headers({"Cache-Control": "no-cache", "X-Accel-Buffering": "no"})
        self._events = events
        self._end = end

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await until_gone(receive, self._send(send))
        except ClientDisconnect:
            pass
        finally:
            self._end()

    async def _send(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        try:
            async for event in self._events:
                await send({"type": "http.response.body", "body": event, "more_body": True})
        except Exception as error:
            event = b"data: " + json.dumps(as_api_error(error).body).encode() + b"\n\n"
            await send({"type": "http.response.body", "body": event, "more_body": True})
        await send({"type": "http.response.body", "body": DONE, "more_body": False})
