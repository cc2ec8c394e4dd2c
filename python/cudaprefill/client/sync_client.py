"""The same client for programs without an event loop: an AsyncClient in a thread of its own."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine, Iterator
from typing import Any, TypeVar

from cudaprefill.client.connection import Backoff
from cudaprefill.client.errors import ClientError
from cudaprefill.client.responses import AsyncClient, Input, ResponseStream
from cudaprefill.protocol.responses import Response

Result = TypeVar("Result")


class Client:
    """As AsyncClient, and safe to use from several threads.

    with Client("http://localhost:8000") as client:
        with client.respond("Hello") as response:
            for text in response:
                print(text, end="")
        print(response.result.usage)
    """

    def __init__(
        self, url: str, api_key: str | None = None, *, backoff: Backoff | None = None, open_timeout: float = 10.0
    ) -> None:
        self._closed = False
        self._loop = asyncio.new_event_loop()
        self._client = AsyncClient(url, api_key, backoff=backoff, open_timeout=open_timeout)
        self._thread = threading.Thread(target=self._loop.run_forever, name="cudaprefill-client", daemon=True)
        self._thread.start()

    def connect(self) -> None:
        """As AsyncClient.connect."""
        self._run(self._client.connect())

    def respond(
        self,
        input: Input | None = None,
        *,
        instructions: str | None = None,
        previous_response_id: str | None = None,
        **fields: Any,
    ) -> SyncResponseStream:
        """As AsyncClient.respond, with `with` and `for`."""
        stream = self._client.respond(
            input, instructions=instructions, previous_response_id=previous_response_id, **fields
        )
        return SyncResponseStream(self._run, stream)

    def close(self) -> None:
        """As AsyncClient.close. Harmless when repeated."""
        if self._closed:
            return
        self._run(self._client.close())
        self._closed = True
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _run(self, work: Coroutine[Any, Any, Result]) -> Result:
        if self._closed:
            work.close()
            raise ClientError("the client is closed")
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()  # the wait was interrupted; nothing to cancel where the work itself failed
            raise


class SyncResponseStream:
    """As ResponseStream."""

    def __init__(self, run: Any, stream: ResponseStream) -> None:
        self._run = run
        self._stream = stream
        self._texts = aiter(stream)

    @property
    def id(self) -> str | None:
        return self._stream.id

    @property
    def text(self) -> str:
        return self._stream.text

    @property
    def result(self) -> Response:
        return self._stream.result

    @property
    def ended(self) -> bool:
        return self._stream.ended

    def wait(self) -> Response:
        """As ResponseStream.wait."""
        for _ in self:
            pass
        return self.result

    def cancel(self) -> None:
        """As ResponseStream.cancel."""
        self._run(self._stream.cancel())

    def __enter__(self) -> SyncResponseStream:
        self._run(self._stream.__aenter__())
        return self

    def __exit__(self, *exception: object) -> None:
        self.cancel()

    def __iter__(self) -> Iterator[str]:
        while (text := self._run(_next(self._texts))) is not None:
            yield text


async def _next(texts: Any) -> str | None:
    text: str | None = await anext(texts, None)
    return text
