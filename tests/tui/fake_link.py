"""A link without a network: answers are scripted, telemetry is what the test applies."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from cudaprefill.protocol.account import Account, Part, PrefixAccount, Work
from cudaprefill.protocol.itl_target import ItlTarget
from cudaprefill.protocol.telemetry import (
    EngineDescription,
    EngineSettings,
    PoolTotals,
    RequestRecord,
    TelemetryBlock,
    TelemetrySnapshot,
)
from cudaprefill_tui.backend import Message
from cudaprefill_tui.conversations import AnswerCost, ChatSettings
from cudaprefill_tui.engine_link import AnswerEnded, AnswerEvent, AnswerStream, AnswerText, EngineLink

COST = AnswerCost(
    prompt_tokens=45, cached_tokens=32, output_tokens=9, queue=0.031, prefill=0.366, ttft=0.397, mean_itl=0.0112
)
Script = Callable[[list[Message]], list[AnswerEvent | Exception]]


def engine() -> EngineDescription:
    return EngineDescription(
        model="tiny",
        family="llama",
        num_parameters=1_000_000,
        dtype="float32",
        kv_cache_dtype="float32",
        device="cpu",
        kernels="avx2",
        threads=2,
        max_model_len=8192,
        block_size=16,
        num_blocks=256,
        block_bytes=4096,
        max_num_seqs=64,
        enable_prefix_caching=True,
        version="0.1.0",
    )


def snapshot(**changes: object) -> TelemetrySnapshot:
    fields: dict[str, object] = {
        "sequence_number": 0,
        "reason": "subscribed",
        "time": 100.0,
        "unix_time": 1_700_000_000.0,
        "engine": engine(),
        "settings": EngineSettings(max_num_batched_tokens=512, long_prefill_token_threshold=0),
        "step": 7,
        "pool": PoolTotals(free=200, cached=26, used=30, taken=90, freed=60, evicted=3, used_tokens=470),
        "requests": [
            RequestRecord(number=1, id="resp_1", state="decoding", priority=0, arrived=99.0, prompt_tokens=40),
        ],
        "blocks": "a" * 25 + "s" * 5 + "c" * 26 + "." * 200,
    }
    return TelemetrySnapshot(**{**fields, **changes})  # type: ignore[arg-type]


def account(request_id: str) -> Account:
    """Queued behind another request, then two chunks with a step between them that was another's."""
    return Account(
        id=request_id,
        number=1,
        state="finished",
        finish_reason="stop",
        prompt_tokens=1045,
        output_tokens=9,
        preemptions=0,
        ttft=0.4,
        total=0.4,
        parts=[
            Part(
                kind="queued",
                start=0.0,
                duration=0.1,
                first_step=4,
                last_step=5,
                waiting_for="seats: 16 of 16 taken",
                behind=["resp_0", "[bold r"],
            ),
            Part(kind="chunk", start=0.1, duration=0.1, first_step=6, last_step=6, first_token=512, num_tokens=512),
            Part(kind="left out", start=0.2, duration=0.1, first_step=7, last_step=7, others=[Work(id="x", tokens=99)]),
            Part(kind="chunk", start=0.3, duration=0.0999, first_step=8, last_step=8, first_token=1024, num_tokens=21),
            Part(kind="between steps", start=0.3999, duration=0.0001),
        ],
        prefix=PrefixAccount(hit_tokens=512, shareable_tokens=1040, reason="different", missed_block=32),
        itl_limit=0.1,
        late_tokens=[],
        num_late_tokens=0,
        incomplete=False,
    )


def echo(messages: list[Message]) -> list[AnswerEvent | Exception]:
    words = f"you said {messages[-1]['content']}".split(" ")
    texts = [AnswerText(word if place == 0 else f" {word}") for place, word in enumerate(words)]
    return [*texts, AnswerEnded(COST)]


class FakeStream(AnswerStream):
    """`gate`, while it is not set, holds everything back."""

    response_id = "resp_1"

    def __init__(self, events: list[AnswerEvent | Exception], gate: asyncio.Event) -> None:
        self._events, self._gate = events, gate
        self.cancelled = self.closed = False
        self._cancel = asyncio.Event()

    async def __anext__(self) -> AnswerEvent:
        if not self._events:
            raise StopAsyncIteration
        gate, cancel = asyncio.ensure_future(self._gate.wait()), asyncio.ensure_future(self._cancel.wait())
        try:
            await asyncio.wait([gate, cancel], return_when=asyncio.FIRST_COMPLETED)
        finally:
            gate.cancel()
            cancel.cancel()
        if self._cancel.is_set():
            self._events.clear()
            return AnswerEnded(COST, "stopped")
        await asyncio.sleep(0)
        if not self._events:
            raise StopAsyncIteration
        event = self._events.pop(0)
        if isinstance(event, Exception):
            raise event
        return event

    async def cancel(self) -> None:
        self.cancelled = True
        self._cancel.set()

    async def aclose(self) -> None:
        self.closed = True


class FakeLink(EngineLink):
    def __init__(self, url: str = "http://127.0.0.1:8000", script: Script = echo) -> None:
        super().__init__(url)
        self.script = script
        self.gate = asyncio.Event()
        self.gate.set()
        self.asked: list[tuple[list[Message], ChatSettings]] = []
        self.streams: list[FakeStream] = []
        self.calls: list[tuple[object, ...]] = []
        self.fault: Exception | None = None
        self.closed = False

    async def run(self) -> None:
        self.apply(snapshot())

    def respond(self, messages: list[Message], settings: ChatSettings) -> FakeStream:
        self.asked.append(([dict(message) for message in messages], settings))
        self.streams.append(FakeStream(self.script(messages), self.gate))
        return self.streams[-1]

    async def _call(self, *call: object) -> None:
        self.calls.append(call)
        if self.fault is not None:
            raise self.fault

    async def change_settings(
        self,
        *,
        max_num_batched_tokens: int | None = None,
        long_prefill_token_threshold: int | None = None,
        itl_target_ms: ItlTarget | None = None,
    ) -> None:
        await self._call("change_settings", max_num_batched_tokens, long_prefill_token_threshold, itl_target_ms)

    async def abort(self, request_id: str) -> None:
        await self._call("abort", request_id)

    async def reset_prefix_cache(self) -> None:
        await self._call("reset_prefix_cache")

    async def set_owners(self, wanted: bool) -> None:
        await self._call("set_owners", wanted)

    async def describe_block(self, block: int) -> TelemetryBlock:
        await self._call("describe_block", block)
        return TelemetryBlock(
            sequence_number=1,
            block=block,
            state="shared",
            reference_count=2,
            owners=["resp_1"],
            age=3,
            token_ids=[1, 2],
            text="[bold hello",
            hash="ab" * 16,
        )

    async def explain(self, request_id: str) -> Account:
        await self._call("explain", request_id)
        return account(request_id)

    async def close(self) -> None:
        self.closed = True
