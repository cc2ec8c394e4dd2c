"""A running server over its two websockets: telemetry, and responses."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator

from cudaprefill.client import AsyncClient, Backoff, ClientError, ResponseStream, ServerError
from cudaprefill.client.connection import reason
from cudaprefill.client.telemetry import TelemetryConnection
from cudaprefill.protocol.account import Account
from cudaprefill.protocol.itl_target import ItlTarget
from cudaprefill.protocol.responses import Response
from cudaprefill.protocol.telemetry import TelemetryBlock

from .backend import Message
from .conversations import AnswerCost, ChatSettings
from .engine_link import AnswerEnded, AnswerEvent, AnswerStream, AnswerText, EngineLink, LinkError

UPDATES_PER_SECOND = 10.0
RETRY = Backoff(longest=2.0, attempts=None)  # for telemetry: a person watches, so a server that is back shows soon
ANSWER_ATTEMPTS = Backoff(attempts=3)  # then the answer fails and says so
REFUSED_SECONDS = 5.0  # until a server that refuses is asked again: it may be another one by then
HINTS = {
    401: ": it wants an API key (--api-key)",
    403: ": it wants another API key (--api-key)",
    404: ": it is no cudaprefill server",
}
CUTS = {"max_output_tokens": "cut at the length limit", "cancelled": "stopped"}


class ServerLink(EngineLink):
    def __init__(self, url: str, api_key: str | None = None) -> None:
        """Raises ValueError for a `url` that is none."""
        super().__init__(url)
        self._client = AsyncClient(url, api_key, backoff=ANSWER_ATTEMPTS)
        self._api_key = api_key
        self._owners = False
        self._closed = False
        self._telemetry = self._connection()

    def _connection(self) -> TelemetryConnection:
        return TelemetryConnection(
            self.url,
            api_key=self._api_key,
            rate=UPDATES_PER_SECOND,
            owners=self._owners,
            backoff=RETRY,
            on_connection=self._connected,
            on_failure=self._failed,
        )

    async def run(self) -> None:
        while not self._closed:
            try:
                async with self._telemetry as telemetry:
                    async for message in telemetry:
                        self.apply(message)
            except ServerError as error:
                self.set_state("refused", f"{error}{HINTS.get(error.status or 0, '')}")
            except (ClientError, ValueError) as error:
                self.set_state("lost", str(error))
            if not self._closed:
                await asyncio.sleep(REFUSED_SECONDS)
                self._telemetry = self._connection()

    def _connected(self, connected: bool) -> None:
        if not connected:
            self.set_state("lost", "the connection broke")

    def _failed(self, attempt: int, error: Exception) -> None:
        self.set_state("connecting" if self.view.engine is None and attempt == 1 else "lost", reason(error))

    def respond(self, messages: list[Message], settings: ChatSettings) -> ServerStream:
        return ServerStream(self._client, messages, settings)

    async def change_settings(
        self,
        *,
        max_num_batched_tokens: int | None = None,
        long_prefill_token_threshold: int | None = None,
        itl_target_ms: ItlTarget | None = None,
    ) -> None:
        with _told():
            await self._telemetry.change_settings(
                max_num_batched_tokens=max_num_batched_tokens,
                long_prefill_token_threshold=long_prefill_token_threshold,
                itl_target_ms=itl_target_ms,
            )

    async def abort(self, request_id: str) -> None:
        with _told():
            await self._telemetry.abort(request_id)

    async def reset_prefix_cache(self) -> None:
        with _told():
            await self._telemetry.reset_prefix_cache()

    async def set_owners(self, wanted: bool) -> None:
        self._owners = wanted
        with _told():
            await self._telemetry.subscribe(owners=wanted)

    async def describe_block(self, block: int) -> TelemetryBlock:
        with _told():
            return await self._telemetry.describe_block(block)
        raise AssertionError("not reached")

    async def explain(self, request_id: str) -> Account:
        with _told():
            return await self._telemetry.explain(request_id)
        raise AssertionError("not reached")

    async def close(self) -> None:
        self._closed = True
        await self._telemetry.close()
        await self._client.close()


class ServerStream(AnswerStream):
    def __init__(self, client: AsyncClient, messages: list[Message], settings: ChatSettings) -> None:
        self._client, self._messages, self._settings = client, messages, settings
        self._response: ResponseStream | None = None
        self._events = self._read()

    @property
    def response_id(self) -> str:
        return (self._response.id if self._response is not None else None) or ""

    async def __anext__(self) -> AnswerEvent:
        return await self._events.__anext__()

    async def cancel(self) -> None:
        if self._response is not None:
            with _told():
                await self._response.cancel()

    async def aclose(self) -> None:
        await self._events.aclose()

    async def _read(self) -> AsyncGenerator[AnswerEvent, None]:
        settings = self._settings
        with _told():
            self._response = self._client.respond(
                [dict(message) for message in self._messages],
                model=settings.model,
                instructions=settings.system or None,
                temperature=settings.temperature,
                top_p=settings.top_p,
                max_output_tokens=settings.max_tokens,
                seed=settings.seed,
                store=False,
            )
            async with self._response as response:
                async for text in response:
                    yield AnswerText(text)
                yield _ended(response.result)


class _told(contextlib.AbstractContextManager[None]):  # noqa: N801  (reads as a statement)
    """Turns the client's errors into LinkErrors."""

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, (ClientError, ValueError, OSError)):
            raise LinkError(str(error) or type(error).__name__) from error


def _ended(response: Response) -> AnswerEnded:
    usage, metrics = response.usage, response.metrics
    cost = AnswerCost(
        prompt_tokens=usage.input_tokens if usage else 0,
        cached_tokens=usage.input_tokens_details.cached_tokens if usage else 0,
        output_tokens=usage.output_tokens if usage else 0,
        queue=metrics.queue_time if metrics else None,
        prefill=metrics.prefill_time if metrics else None,
        ttft=metrics.ttft if metrics else None,
        mean_itl=metrics.mean_itl if metrics else None,
    )
    reason = response.incomplete_details.reason if response.incomplete_details else ""
    return AnswerEnded(cost, CUTS.get(reason, reason))
