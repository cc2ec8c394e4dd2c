"""OpenTelemetry spans of requests, with the names and attributes that vLLM's spans have.

    llm_request                 received until finished
      queued                    until it was first admitted
      prefill                   from there to the first token; an event for each chunk and preemption
      decode                    from the first token to the last

Needs the packages of the extra `otel`, which are imported when the first engine with an endpoint is made.
"""

from __future__ import annotations

import importlib
import time
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Protocol

from cudaprefill.observe.events import RequestEvent, RequestEventKind, StepEvent

if TYPE_CHECKING:
    Attributes = dict[str, str | int | float]


class Span(Protocol):
    def add_event(self, name: str, attributes: Any = None, timestamp: int | None = None) -> None: ...
    def end(self, end_time: int | None = None) -> None: ...


class StartSpan(Protocol):
    """Starts a span under `parent`, at nanoseconds since 1970."""

    def __call__(self, name: str, parent: Span | None, start: int, attributes: Attributes) -> Span: ...


class RequestSpans:
    """A listener of events: makes a request's spans when it has finished. Requests that never finish have none."""

    def __init__(self, start_span: StartSpan, model: str, clock_offset: float) -> None:
        """`clock_offset`: seconds to add to times of the engine's clock, for seconds since 1970."""
        self._start_span = start_span
        self._model = model
        self._clock_offset = clock_offset
        self._requests: dict[int, list[RequestEvent]] = {}

    @classmethod
    def to(cls, endpoint: str, model: str) -> RequestSpans:
        """Sends spans by OTLP over HTTP. Raises ValueError if the packages for it are not installed."""
        try:
            exporter = importlib.import_module("opentelemetry.exporter.otlp.proto.http.trace_exporter")
            resources = importlib.import_module("opentelemetry.sdk.resources")
            sdk = importlib.import_module("opentelemetry.sdk.trace")
            export = importlib.import_module("opentelemetry.sdk.trace.export")
        except ImportError as error:
            raise ValueError(
                f"otlp_traces_endpoint needs a package that is missing ({error.name}): pip install 'cudaprefill[otel]'"
            ) from None
        provider = sdk.TracerProvider(resource=resources.Resource.create({"service.name": "cudaprefill"}))
        provider.add_span_processor(export.BatchSpanProcessor(exporter.OTLPSpanExporter(endpoint=endpoint)))
        return cls(start_span_of(provider.get_tracer("cudaprefill")), model, time.time() - time.monotonic())

    def __call__(self, events: Iterable[RequestEvent | StepEvent]) -> None:
        for event in events:
            self.on_event(event)

    def on_event(self, event: RequestEvent | StepEvent) -> None:
        if isinstance(event, StepEvent):
            return
        if event.kind is RequestEventKind.ARRIVED:
            self._requests[event.number] = [event]
        elif event.number in self._requests:
            self._requests[event.number].append(event)
            if event.kind is RequestEventKind.FINISHED:
                self._make(self._requests.pop(event.number))

    def _nanos(self, seconds: float) -> int:
        return round((seconds + self._clock_offset) * 1e9)

    def _make(self, events: list[RequestEvent]) -> None:
        first: dict[RequestEventKind, RequestEvent] = {}
        for event in events:
            first.setdefault(event.kind, event)
        arrived, finished = events[0], events[-1]
        scheduled, first_token = first.get(RequestEventKind.SCHEDULED), first.get(RequestEventKind.FIRST_TOKEN)
        request = self._start_span(
            "llm_request", None, self._nanos(arrived.time), self._attributes(arrived, scheduled, first_token, finished)
        )
        self._part(request, "queued", arrived.time, (scheduled or finished).time)
        if scheduled is not None:
            prefill = self._start_span("prefill", request, self._nanos(scheduled.time), {})
            end = (first_token or finished).time
            for event in events:
                if event.kind in (RequestEventKind.CHUNK, RequestEventKind.PREEMPTED) and event.time <= end:
                    details = {"start": event.start, "length": event.length, "step": event.step}
                    prefill.add_event(event.kind.value, details, self._nanos(event.time))
            prefill.end(self._nanos(end))
        if first_token is not None:
            self._part(request, "decode", first_token.time, finished.time)
        request.end(self._nanos(finished.time))

    def _part(self, parent: Span, name: str, start: float, end: float) -> None:
        self._start_span(name, parent, self._nanos(start), {}).end(self._nanos(end))

    def _attributes(
        self,
        arrived: RequestEvent,
        scheduled: RequestEvent | None,
        first_token: RequestEvent | None,
        finished: RequestEvent,
    ) -> Attributes:
        attributes: Attributes = {
            "gen_ai.request.id": arrived.request_id,
            "gen_ai.response.model": self._model,
            "gen_ai.usage.prompt_tokens": arrived.num_prompt_tokens - arrived.num_virtual_tokens,
            "gen_ai.usage.completion_tokens": finished.num_output_tokens,
            "gen_ai.latency.e2e": finished.time - arrived.time,
        }
        if arrived.adapter is not None:
            attributes["cudaprefill.adapter"] = arrived.adapter
        if arrived.max_tokens is not None:
            attributes["gen_ai.request.max_tokens"] = arrived.max_tokens
        if scheduled is not None:
            attributes["gen_ai.latency.time_in_queue"] = scheduled.time - arrived.time
            attributes["gen_ai.latency.time_in_model_inference"] = finished.time - scheduled.time
        if scheduled is not None and first_token is not None:
            attributes["gen_ai.latency.time_to_first_token"] = first_token.time - arrived.time
            attributes["gen_ai.latency.time_in_model_prefill"] = first_token.time - scheduled.time
            attributes["gen_ai.latency.time_in_model_decode"] = finished.time - first_token.time
        return attributes


def start_span_of(tracer: Any) -> StartSpan:
    """By an OpenTelemetry tracer."""
    set_span_in_context = importlib.import_module("opentelemetry.trace").set_span_in_context

    def start(name: str, parent: Any, start: int, attributes: Attributes) -> Span:
        context = None if parent is None else set_span_in_context(parent)
        span: Span = tracer.start_span(name, context=context, start_time=start, attributes=attributes)
        return span

    return start
