"""One telemetry connection: what its client sends, and what it is sent."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING

from starlette.websockets import WebSocket, WebSocketDisconnect, WebSocketState

from cudaprefill.protocol.codec import ProtocolError, decode, encode, parse_object
from cudaprefill.protocol.telemetry import (
    CLIENT_MESSAGES,
    MAX_RATE,
    MIN_RATE,
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
    TelemetrySubscribe,
)
from cudaprefill.server.errors import ApiError, as_api_error
from cudaprefill.server.telemetry.feed import Wish
from cudaprefill.server.telemetry.hub import Encoded, Subscription

if TYPE_CHECKING:
    from cudaprefill.engine.engine import Engine
    from cudaprefill.server.explain import Explanations
    from cudaprefill.server.observers import Observers
    from cudaprefill.server.state import ServerState

Answer = TelemetryBlock | TelemetryAccount
_SETTINGS = ("max_num_batched_tokens", "long_prefill_token_threshold", "itl_target_ms")


class TelemetrySession:
    """Reads one message after the other and answers it; a task of its own sends the subscription's.

    Both wait for a slow reader, so at most one message of each is held for it here.
    """

    def __init__(self, websocket: WebSocket) -> None:
        self._websocket = websocket
        self._state: ServerState = websocket.app.state.server
        self._observers: Observers = websocket.app.state.observers
        self._explanations: Explanations = websocket.app.state.explanations
        self._sequence_number = 0
        self._sending = asyncio.Lock()  # a message must not overtake one with a lower number
        self._subscription: Subscription | None = None
        self._publishing: asyncio.Task[None] | None = None

    async def run(self) -> None:
        """To the end of the connection, which leaves nothing behind."""
        await self._websocket.accept()
        self._observers.metrics.telemetry_connections += 1
        try:
            # A send that fails says no more than the disconnect that is received next, or was.
            with contextlib.suppress(WebSocketDisconnect):
                while True:
                    message = await self._websocket.receive()
                    if message["type"] == "websocket.disconnect":
                        break
                    await self._receive(message.get("text"))
        finally:
            self._observers.metrics.telemetry_connections -= 1
            if self._publishing is not None:
                self._publishing.cancel()
                await asyncio.gather(self._publishing, return_exceptions=True)
            if self._subscription is not None:
                await self._observers.telemetry.unsubscribe(self._subscription)

    # --- What it sends ---

    async def _publish(self, subscription: Subscription) -> None:
        with contextlib.suppress(WebSocketDisconnect):
            while True:
                await self._send(await subscription.next())

    async def _send(self, message: Encoded | Answer | TelemetryDone | TelemetryError) -> None:
        async with self._sending:
            if self._websocket.application_state is not WebSocketState.CONNECTED:  # the other task's send has failed
                raise WebSocketDisconnect(1006)
            number = self._sequence_number
            self._sequence_number += 1
            if isinstance(message, Encoded):
                text = message.numbered(number)
            else:
                message.sequence_number = number
                text = encode(message)
            await self._websocket.send_text(text)

    async def _send_error(self, error: ApiError, command_id: int | None) -> None:
        code = error.code or "invalid_request"
        await self._send(
            TelemetryError(
                sequence_number=0, code=code, message=error.message, param=error.param, command_id=command_id
            )
        )

    # --- What it is sent ---

    async def _receive(self, text: str | None) -> None:
        try:
            if text is None:
                raise ProtocolError("a message must be text, got a binary frame")
            message = decode(text, CLIENT_MESSAGES)
        except ProtocolError as error:
            refusal = ApiError(400, str(error), param=error.param, code="invalid_message")
            await self._send_error(refusal, _command_id(text))
            return
        try:
            answer = await self._carry_out(message)
        except Exception as error:
            await self._send_error(as_api_error(error, _SETTINGS), message.command_id)
            return
        if answer is not None:
            answer.command_id = message.command_id
            await self._send(answer)
        elif message.command_id is not None:
            await self._send(TelemetryDone(sequence_number=0, command_id=message.command_id))

    async def _carry_out(self, message: ClientMessage) -> Answer | None:
        if isinstance(message, TelemetryDescribeBlock):
            return await self._describe_block(message.block)
        if isinstance(message, TelemetryExplain):
            engine = self._state.engine
            account = await self._explanations.account(engine, message.id, message.itl_limit_ms)
            return TelemetryAccount(sequence_number=0, account=account)
        if isinstance(message, TelemetrySubscribe):
            self._subscribe(message)
        elif isinstance(message, TelemetryChangeSettings):
            wanted = {name: getattr(message, name) for name in _SETTINGS if getattr(message, name) is not None}
            await self._state.engine.change_settings(**wanted)
        elif isinstance(message, TelemetryAbort):
            if not await self._state.engine.abort(message.id):
                raise ApiError(404, f"there is no request {message.id!r}", param="id", code="request_not_found")
        elif isinstance(message, TelemetryResetPrefixCache):
            await self._state.engine.reset_prefix_cache()
        return None

    def _subscribe(self, message: TelemetrySubscribe) -> None:
        if not MIN_RATE <= message.rate <= MAX_RATE:
            raise ApiError(400, f"rate must be between {MIN_RATE} and {MAX_RATE}, got {message.rate}", param="rate")
        if not message.events:
            raise ApiError(400, "events must not be empty", param="events")
        wish = Wish(frozenset(message.events), message.owners)
        if self._subscription is not None:
            self._subscription.change(wish, message.rate)
        else:
            self._subscription = self._observers.telemetry.subscribe(wish, message.rate)
            self._publishing = asyncio.create_task(self._publish(self._subscription))

    async def _describe_block(self, block: int) -> TelemetryBlock:
        engine = self._state.engine
        num_blocks = engine.info.num_blocks
        if not 0 <= block < num_blocks:
            raise ApiError(400, f"block must be between 0 and {num_blocks - 1}, got {block}", param="block")
        step = self._observers.metrics.requests.step
        described, keys = await engine.call(lambda engine: _describe_block(engine, block, step))
        described.text = engine.tokenizer.decode(described.token_ids, skip_special_tokens=False)
        if "adapter" in keys:
            described.adapter = engine.adapters.name_of(keys["adapter"])
        return described


def _command_id(text: str | None) -> int | None:
    """Of a message that is wrong in some other way, as far as it can be told."""
    try:
        command_id = parse_object(text or "").get("command_id")
    except ProtocolError:
        return None
    return command_id if type(command_id) is int else None


def _describe_block(engine: Engine, block: int, step: int) -> tuple[TelemetryBlock, dict[str, bytes]]:
    """In the engine's thread; `step` is the last one that was heard of. Also the extra keys of its prefix."""
    scheduler = engine.scheduler
    info = scheduler.table.describe(block)
    text = [token for token in info.token_ids if token >= 0]
    described = TelemetryBlock(
        sequence_number=0,
        block=block,
        state=info.state.name.lower(),
        reference_count=info.reference_count,
        owners=scheduler.block_owners(block),
        age=max(0, step - info.last_use),
        token_ids=text,
        text="",
        hash=info.hash,
        virtual_tokens=(len(info.token_ids) - len(text)) or None,
    )
    return described, dict(info.extra_keys)
