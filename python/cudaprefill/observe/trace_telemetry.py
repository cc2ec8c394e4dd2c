"""A trace as the telemetry that a client would have got, and as accounts of its requests.

A trace says how many blocks each step took and how many are used, cached and free, not which: what is made of it has no
map of blocks, and no waste.
"""

from __future__ import annotations

from collections.abc import Iterator

from cudaprefill.observe.events import RequestEvent, StepEvent
from cudaprefill.observe.explain import explain
from cudaprefill.observe.explain.history import History
from cudaprefill.observe.records import request_change, step_records
from cudaprefill.observe.trace import Trace
from cudaprefill.protocol.account import Account
from cudaprefill.protocol.codec import build
from cudaprefill.protocol.telemetry import (
    DEFAULT_ITL_LIMIT_MS,
    EngineDescription,
    EngineSettings,
    PoolTotals,
    RequestChange,
    TelemetrySnapshot,
    TelemetryUpdate,
)

TOGETHER = 0.05  # seconds; stations that no step follows are told after so long


def trace_telemetry(trace: Trace) -> Iterator[tuple[float, TelemetrySnapshot | TelemetryUpdate]]:
    """A snapshot, then an update a step, each with its seconds since the first event. Nothing for an empty trace.

    Raises ProtocolError for a header that does not describe an engine.
    """
    if not trace.events:
        return
    begin = _begin(trace.events[0])
    pool = PoolTotals(free=0, cached=0, used=0, taken=0, freed=0, evicted=0)
    snapshot = _snapshot(trace, begin, pool)
    pool.free = snapshot.engine.num_blocks
    yield 0.0, snapshot
    decodes: tuple[int, ...] = ()
    pending: list[RequestChange] = []
    for event in trace.events:
        if pending and _begin(event) > pending[0].time + TOGETHER:
            yield pending[-1].time - begin, TelemetryUpdate(sequence_number=0, time=pending[-1].time, requests=pending)
            pending = []
        if isinstance(event, RequestEvent):
            pending.append(request_change(event))
            continue
        pool = _after(event, pool)
        end = event.start + event.duration
        steps = step_records([event], decodes)
        decodes = event.decode_numbers
        yield (
            end - begin,
            TelemetryUpdate(sequence_number=0, time=end, steps=steps, requests=pending or None, pool=pool),
        )
        pending = []
    if pending:
        yield pending[-1].time - begin, TelemetryUpdate(sequence_number=0, time=pending[-1].time, requests=pending)


def trace_account(trace: Trace, request_id: str, itl_limit_ms: float = DEFAULT_ITL_LIMIT_MS) -> Account:
    """Raises KeyError for a request that the trace does not hold."""
    scheduler = trace.header.scheduler
    history = History.of(
        trace.events, block_size=scheduler["block_size"], prefix_caching=bool(scheduler["enable_prefix_caching"])
    )
    return explain(history, request_id, itl_limit=itl_limit_ms / 1e3, itl_target_ms=scheduler.get("itl_target_ms"))


def _begin(event: RequestEvent | StepEvent) -> float:
    return event.start if isinstance(event, StepEvent) else event.time


def _snapshot(trace: Trace, begin: float, pool: PoolTotals) -> TelemetrySnapshot:
    header = trace.header
    steps = (event.number for event in trace.events if isinstance(event, StepEvent))
    return TelemetrySnapshot(
        sequence_number=0,
        reason="subscribed",
        time=begin,
        unix_time=header.unix_time + begin - header.time,
        engine=build(EngineDescription, {**header.engine, "version": header.version}, "engine."),
        settings=build(EngineSettings, header.scheduler, "scheduler."),
        step=next(steps, 1) - 1,
        pool=pool,
        requests=[],
    )


def _after(step: StepEvent, before: PoolTotals) -> PoolTotals:
    return PoolTotals(
        free=step.num_free_blocks,
        cached=step.num_cached_blocks,
        used=step.num_used_blocks,
        taken=before.taken + step.num_blocks_taken,
        freed=before.freed + step.num_blocks_freed,
        evicted=before.evicted + step.num_blocks_evicted,
    )
