"""A trace as Chrome's trace event format, which Perfetto and chrome://tracing open.

Two processes: the engine, with its steps and counters, and the requests, one track each.
Format: "Trace Event Format" of the Chromium project: complete ("X"), instant ("i"), counter ("C") and metadata ("M")
events; times in microseconds.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from cudaprefill.observe.events import RequestEvent, RequestEventKind, StepEvent
from cudaprefill.observe.trace import Trace

ENGINE, REQUESTS = 1, 2  # process ids
STEPS = 1  # thread id

ChromeEvent = dict[str, Any]


def chrome_trace(trace: Trace) -> dict[str, Any]:
    """To be written as JSON."""
    header = trace.header
    events = list(_Exporter(header.time).export(trace))
    return {
        "traceEvents": events,
        "displayTimeUnit": "ms",
        "otherData": {"version": header.version, **{str(k): str(v) for k, v in header.engine.items()}},
    }


class _Track:
    """A request's: the slice that is open, and since when."""

    def __init__(self, name: str, start: float) -> None:
        self.name = name
        self.start = start


class _Exporter:
    def __init__(self, begin: float) -> None:
        self._begin = begin
        self._open: dict[int, _Track] = {}

    def export(self, trace: Trace) -> Iterator[ChromeEvent]:
        yield _metadata("process_name", ENGINE, 0, f"engine {trace.header.engine.get('model', '')}".strip())
        yield _metadata("thread_name", ENGINE, STEPS, "steps")
        yield _metadata("process_name", REQUESTS, 0, "requests")
        end = self._begin
        for event in trace.events:
            if isinstance(event, StepEvent):
                end = event.start + event.duration
                yield from self._step(event)
            else:
                yield from self._request(event)
        for number in list(self._open):
            yield from self._close(number, end, {"unfinished": True})

    def _micros(self, time: float) -> float:
        return round((time - self._begin) * 1e6, 1)

    def _slice(self, process: int, track: int, name: str, start: float, end: float, details: Any) -> ChromeEvent:
        duration = max(0.0, self._micros(end) - self._micros(start))
        return {
            "ph": "X",
            "pid": process,
            "tid": track,
            "name": name,
            "cat": "engine" if process == ENGINE else "request",
            "ts": self._micros(start),
            "dur": round(duration, 1),
            "args": details,
        }

    def _close(self, number: int, time: float, details: dict[str, Any]) -> Iterator[ChromeEvent]:
        track = self._open.pop(number, None)
        if track is not None and time > track.start:
            yield self._slice(REQUESTS, number, track.name, track.start, time, details)

    def _request(self, event: RequestEvent) -> Iterator[ChromeEvent]:
        number, kind = event.number, event.kind
        if kind is RequestEventKind.ARRIVED:
            yield _metadata("thread_name", REQUESTS, number, event.request_id)
            yield {**_metadata("thread_sort_index", REQUESTS, number, ""), "args": {"sort_index": number}}
            self._open[number] = _Track("queued", event.time)
        elif kind is RequestEventKind.SCHEDULED:
            yield from self._close(number, event.time, {"step": event.step, "hit_tokens": event.hit_tokens})
        elif kind is RequestEventKind.FIRST_TOKEN:
            self._open[number] = _Track("decode", event.time)
        elif kind is RequestEventKind.PREEMPTED:
            yield from self._close(number, event.time, {"step": event.step})
            yield self._instant(number, "preempted", event.time, {"step": event.step})
            self._open[number] = _Track("queued again", event.time)
        elif kind is RequestEventKind.FINISHED:
            yield from self._close(number, event.time, {"output_tokens": event.num_output_tokens})
            yield self._instant(number, event.reason, event.time, {"output_tokens": event.num_output_tokens})

    def _instant(self, number: int, name: str, time: float, details: dict[str, Any]) -> ChromeEvent:
        instant = {"ph": "i", "pid": REQUESTS, "tid": number, "name": name, "cat": "request", "s": "t"}
        return {**instant, "ts": self._micros(time), "args": details}

    def _step(self, step: StepEvent) -> Iterator[ChromeEvent]:
        end = step.start + step.duration
        details = {
            "step": step.number,
            "tokens": step.num_tokens,
            "decodes": len(step.decode_numbers),
            "chunks": {chunk.request_id: f"{chunk.start}+{chunk.length}" for chunk in step.chunks},
            "waiting_for": step.waiting_for,
        }
        yield self._slice(ENGINE, STEPS, f"step {step.number}", step.start, end, details)
        for chunk in step.chunks:
            name = f"chunk {chunk.start}..{chunk.start + chunk.length - 1}"
            start = max(step.start, self._start_of(chunk.number, step.start))
            until = self._first_token_of(chunk.number, end)
            yield self._slice(REQUESTS, chunk.number, name, start, until, {"step": step.number, "tokens": chunk.length})
        counters = {
            "blocks": {
                "used": step.num_used_blocks,
                "cached": step.num_cached_blocks,
                "free": step.num_free_blocks,
            },
            "queue": {"waiting": step.num_waiting},
            "budget": {
                "decodes": len(step.decode_numbers),
                "chunks": step.num_tokens - len(step.decode_numbers),
                "unused": max(0, step.token_budget - step.num_tokens),
            },
        }
        for name, values in counters.items():
            yield {"ph": "C", "pid": ENGINE, "name": name, "ts": self._micros(step.start), "args": values}

    def _first_token_of(self, number: int, end: float) -> float:
        """Where a chunk's slice ends: slices of one track must not overlap, and decoding begins at the first token."""
        track = self._open.get(number)
        return min(end, track.start) if track is not None and track.name == "decode" else end

    def _start_of(self, number: int, start: float) -> float:
        track = self._open.get(number)
        return start if track is None or track.name == "decode" else max(start, track.start)


def _metadata(name: str, process: int, thread: int, value: str) -> ChromeEvent:
    return {"ph": "M", "pid": process, "tid": thread, "name": name, "args": {"name": value}}
