"""What is known about a run: the events of its requests, and its steps."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from cudaprefill.observe.events import RequestEvent, RequestEventKind, RequestTokens, StepEvent


@dataclass
class RequestHistory:
    """The events of one request, in order."""

    arrived: RequestEvent
    events: list[RequestEvent] = field(default_factory=list)  # all, `arrived` first
    tokens: RequestTokens | None = None  # the newest that is known
    sent_time: float | None = None  # when the server had written its first token

    @property
    def order(self) -> tuple[int, float, int]:
        """The place in the waiting queue: as the scheduler's."""
        return (self.arrived.priority, self.arrived.time, self.arrived.number)

    def add(self, event: RequestEvent) -> None:
        self.events.append(event)
        if event.tokens is not None:
            self.tokens = event.tokens

    def first(self, kind: RequestEventKind) -> RequestEvent | None:
        return next((event for event in self.events if event.kind is kind), None)

    def waits(self) -> list[tuple[int, int | None]]:
        """Steps in which it stood in the queue: first, and the one in which it left (None: it has not)."""
        waits: list[tuple[int, int | None]] = []
        since: int | None = None
        for event in self.events:
            if event.kind is RequestEventKind.QUEUED:
                since = event.step + 1
            elif event.kind is RequestEventKind.PREEMPTED:
                since = event.step
            elif event.kind in (RequestEventKind.SCHEDULED, RequestEventKind.FINISHED) and since is not None:
                waits.append((since, event.step))
                since = None
        return waits if since is None else [*waits, (since, None)]

    def waits_in(self, step: int) -> bool:
        return any(first <= step and (last is None or step < last) for first, last in self.waits())


@dataclass(frozen=True)
class History:
    """requests: by number. steps: in order, maybe not from the first on."""

    requests: Mapping[int, RequestHistory]
    steps: Sequence[StepEvent]
    block_size: int
    prefix_caching: bool

    @classmethod
    def of(cls, events: Iterable[RequestEvent | StepEvent], *, block_size: int, prefix_caching: bool = True) -> History:
        """All there is to know from the events of a whole run."""
        requests: dict[int, RequestHistory] = {}
        steps: list[StepEvent] = []
        for event in events:
            if isinstance(event, StepEvent):
                steps.append(event)
            elif event.kind is RequestEventKind.ARRIVED:
                requests[event.number] = RequestHistory(event)
                requests[event.number].add(event)
            elif event.number in requests:
                requests[event.number].add(event)
        return cls(requests, steps, block_size, prefix_caching)

    def find(self, request_id: str) -> RequestHistory:
        """The latest request of that id. Raises KeyError."""
        for request in sorted(self.requests.values(), key=lambda request: -request.arrived.number):
            if request.arrived.request_id == request_id:
                return request
        raise KeyError(request_id)

    def lead_of(self, request: RequestHistory) -> RequestHistory:
        """The request whose prefill it shares: that of the first of n outputs. Its own, mostly."""
        lead_id, mark, _ = request.arrived.request_id.rpartition("#")
        if mark:
            for other in self.requests.values():
                if (other.arrived.request_id, other.arrived.time) == (lead_id, request.arrived.time):
                    return other
        return request

    def decode_context(self, number: int, step: StepEvent) -> int:
        """Tokens that a decode of `step` attends to, about: preemptions count as if it had gone on."""
        request = self.requests.get(number)
        first = None if request is None else request.first(RequestEventKind.FIRST_TOKEN)
        if request is None or first is None:
            return 0
        return request.arrived.num_prompt_tokens + step.number - first.step

    def decode_contexts(self, step: StepEvent) -> int:
        """Of all its decodes together."""
        return sum(self.decode_context(number, step) for number in step.decode_numbers)

    def step(self, number: int) -> StepEvent | None:
        index = bisect_left(self.steps, number, key=lambda step: step.number)
        return self.steps[index] if index < len(self.steps) and self.steps[index].number == number else None

    def evicted_in(self, block_hash: int, last: int) -> StepEvent | None:
        """The latest step up to `last` in which this prefix gave way."""
        for step in reversed(self.steps):
            if step.number <= last and step.evicted_hashes is not None and block_hash in step.evicted_hashes:
                return step
        return None

    def steps_between(self, start: float, end: float) -> Sequence[StepEvent]:
        """Those that begin in [start, end)."""
        first = bisect_left(self.steps, start, key=lambda step: step.start)
        return self.steps[first : bisect_left(self.steps, end, key=lambda step: step.start)]

    def step_at(self, time: float) -> StepEvent | None:
        """The step under way at `time`."""
        index = bisect_left(self.steps, time, key=lambda step: step.start + step.duration)
        return self.steps[index] if index < len(self.steps) and self.steps[index].start < time else None

    def ahead_of(self, request: RequestHistory, step: int) -> list[RequestHistory]:
        """Who stood before it in the queue when `step` was decided, the head first."""
        ahead = [
            other
            for other in self.requests.values()
            if other.order < request.order and other.waits_in(step) and other is not self.lead_of(request)
        ]
        return sorted(ahead, key=lambda other: other.order)
