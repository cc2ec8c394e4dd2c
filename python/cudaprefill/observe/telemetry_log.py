"""Telemetry as the events that it tells of, so that what was recorded of a server can be explained without it.

Telemetry has neither the tokens of prompts nor what a step would have cost: where a prefix stopped is known, not why,
and of a late token what made it late, not what would have prevented it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from cudaprefill.observe.events import ChunkSpan, RequestEvent, RequestEventKind, StepEvent
from cudaprefill.observe.explain import ExplainLog, explain
from cudaprefill.observe.explain.log import MAX_REQUESTS
from cudaprefill.protocol.account import Account
from cudaprefill.protocol.telemetry import (
    DEFAULT_ITL_LIMIT_MS,
    EngineDescription,
    EngineSettings,
    RequestChange,
    RequestRecord,
    ServerMessage,
    StepRecord,
    TelemetrySnapshot,
    TelemetryUpdate,
)


@dataclass
class _Stream:
    """What must be known of a request to tell which of its chunks is the last, after preemptions too."""

    id: str
    prompt_tokens: int
    num_tokens: int  # of its prompt, and of its output so far
    prefill_target: int  # tokens that the prefill under way, or the next, computes; hits included

    def is_last_chunk(self, end: int) -> bool:
        return end >= self.prefill_target


class TelemetryLog:
    """Takes the messages in order. Requests that ran before the first one are known from there on."""

    def __init__(self) -> None:
        self._log: ExplainLog | None = None  # None: before the first snapshot
        self._engine: EngineDescription | None = None
        self._settings: EngineSettings | None = None
        self._time = 0.0
        self._step = 0
        self._streams: dict[int, _Stream] = {}  # by request number; of those that ended, the latest
        self._ended: deque[int] = deque()
        self._decodes: tuple[int, ...] = ()

    def apply(self, message: ServerMessage) -> None:
        """What is neither a snapshot nor an update is passed over."""
        if isinstance(message, TelemetrySnapshot):
            self._apply_snapshot(message)
        elif isinstance(message, TelemetryUpdate) and self._log is not None:
            self._apply_update(message, self._log)

    def account(self, request_id: str, itl_limit_ms: float = DEFAULT_ITL_LIMIT_MS) -> Account:
        """As of the last message. Raises KeyError for a request that was not told of."""
        if self._log is None or self._settings is None:
            raise KeyError(request_id)
        return explain(
            self._log.history(),
            request_id,
            itl_limit=itl_limit_ms / 1e3,
            itl_target_ms=self._settings.itl_target_ms,
            now=self._time,
        )

    def _apply_snapshot(self, snapshot: TelemetrySnapshot) -> None:
        goes_on = snapshot.reason != "restarted" and snapshot.engine == self._engine and snapshot.step >= self._step
        if self._log is None or not goes_on:
            engine = snapshot.engine
            self._log = ExplainLog(block_size=engine.block_size, prefix_caching=engine.enable_prefix_caching)
            self._engine = engine
            self._streams.clear()
            self._ended.clear()
        self._settings, self._time, self._step, self._decodes = snapshot.settings, snapshot.time, snapshot.step, ()
        for record in snapshot.requests or ():
            if record.number not in self._streams:
                self._streams[record.number] = _stream_of(record)
                self._log(_events_of(record, snapshot.step))

    def _apply_update(self, update: TelemetryUpdate, log: ExplainLog) -> None:
        self._time = update.time
        self._settings = update.settings or self._settings
        changes = list(reversed(update.requests or ()))
        for step in update.steps or ():
            while changes and changes[-1].step <= step.number:
                self._change(changes.pop(), log)
            self._count(step, log)
        while changes:
            self._change(changes.pop(), log)

    def _change(self, change: RequestChange, log: ExplainLog) -> None:
        number = change.number
        if change.kind == "arrived":
            prompt_tokens = change.prompt_tokens or 0
            self._streams[number] = _Stream(change.id or f"#{number}", prompt_tokens, prompt_tokens, prompt_tokens)
        stream = self._streams.get(number)
        if stream is None:
            return
        if change.kind == "first_token":
            stream.num_tokens += 1
        elif change.kind == "preempted":
            stream.prefill_target = stream.num_tokens
        elif change.kind == "finished":
            self._ended.append(number)
            while len(self._ended) > MAX_REQUESTS:
                self._streams.pop(self._ended.popleft(), None)
        log.on_event(
            RequestEvent(
                kind=RequestEventKind(change.kind),
                request_id=stream.id,
                time=change.time,
                step=change.step,
                start=change.start or 0,
                length=change.length or 0,
                hit_tokens=change.hit_tokens or 0,
                reason=change.reason or "",
                number=number,
                priority=change.priority or 0,
                num_prompt_tokens=change.prompt_tokens or 0,
                num_virtual_tokens=change.virtual_tokens or 0,
                adapter=change.adapter,
                max_tokens=change.max_tokens,
                num_output_tokens=change.output_tokens or 0,
                tokenized=change.tokenized,
            )
        )

    def _count(self, record: StepRecord, log: ExplainLog) -> None:
        self._step = record.number
        if record.joined or record.left:
            self._decodes = tuple(sorted({*self._decodes, *record.joined}.difference(record.left)))
        log.on_event(self._event_of(record))
        for number in self._decodes:
            if number in self._streams:
                self._streams[number].num_tokens += 1
        for number, start, length, _ in record.chunks:
            stream = self._streams.get(number)
            # A first token has a station of its own; the token after a preemption has none.
            if stream is not None and stream.prefill_target > stream.prompt_tokens:
                stream.num_tokens += stream.is_last_chunk(start + length)

    def _event_of(self, record: StepRecord) -> StepEvent:
        return StepEvent(
            number=record.number,
            start=record.start,
            duration=record.duration,
            token_budget=record.token_budget,
            num_tokens=record.num_decodes + sum(length for _, _, length, _ in record.chunks),
            decode_ids=tuple(map(self._id_of, self._decodes)),
            chunks=tuple(self._chunk(*chunk) for chunk in record.chunks),
            preempted_ids=tuple(map(self._id_of, record.preempted)),
            finished_ids=(),
            num_waiting=record.num_waiting,
            waiting_for=record.waiting_for,
            num_blocks_taken=record.blocks_taken,
            num_blocks_freed=record.blocks_freed,
            num_blocks_evicted=record.blocks_evicted,
            num_free_blocks=0,
            num_cached_blocks=0,
            num_used_blocks=0,
            decode_numbers=self._decodes,
            preempted_numbers=tuple(record.preempted),
        )

    def _chunk(self, number: int, start: int, length: int, hit_tokens: int) -> ChunkSpan:
        stream = self._streams.get(number)
        is_last = stream is not None and stream.is_last_chunk(start + length)
        return ChunkSpan(self._id_of(number), start, length, hit_tokens, is_last, number)

    def _id_of(self, number: int) -> str:
        stream = self._streams.get(number)
        return stream.id if stream is not None else f"#{number}"


def _stream_of(record: RequestRecord) -> _Stream:
    num_tokens = record.prompt_tokens + record.output_tokens
    return _Stream(record.id, record.prompt_tokens, num_tokens, num_tokens)


def _events_of(record: RequestRecord, step: int) -> Iterator[RequestEvent]:
    """What a record says of the past, which ended with `step`. In which steps it happened is not told: a first token
    counts as if the request had decoded ever since.
    """

    def event(kind: RequestEventKind, time: float, step: int, **fields: Any) -> RequestEvent:
        return RequestEvent(kind, record.id, time, step, number=record.number, **fields)

    yield event(
        RequestEventKind.ARRIVED,
        record.arrived,
        0,
        priority=record.priority,
        num_prompt_tokens=record.prompt_tokens,
        num_virtual_tokens=record.virtual_tokens or 0,
        adapter=record.adapter,
        max_tokens=record.max_tokens,
    )
    yield event(RequestEventKind.QUEUED, record.arrived, 0)
    if record.first_scheduled is not None:
        yield event(RequestEventKind.SCHEDULED, record.first_scheduled, step, hit_tokens=record.hit_tokens)
        if record.first_token is not None:
            yield event(RequestEventKind.FIRST_TOKEN, record.first_token, max(0, step + 1 - record.output_tokens))
        if record.state == "waiting":
            yield event(RequestEventKind.PREEMPTED, record.last_token or record.first_scheduled, step)
