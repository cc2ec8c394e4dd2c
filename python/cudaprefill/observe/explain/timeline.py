"""From the arrival to the first token, in parts that leave nothing out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from cudaprefill.observe.events import RequestEventKind, StepEvent
from cudaprefill.observe.explain.history import History, RequestHistory
from cudaprefill.observe.explain.work import Cost, work_of
from cudaprefill.protocol.account import Part, PartKind, Work


class Timeline:
    """Lays part after part, each from where the one before ended."""

    def __init__(self, history: History, request: RequestHistory, cost: Cost | None) -> None:
        self.parts: list[Part] = []
        self._history = history
        self._request = request
        self._lead = history.lead_of(request)
        self._cost = cost
        self._begin = self._now = request.arrived.time

    def run(self, now: float | None = None) -> list[Part]:
        """`now`: until when, for a request that has no first token yet."""
        for event in self._request.events:
            if event.kind is RequestEventKind.QUEUED:
                if event.tokenized is not None:
                    self._add("tokenizing", min(event.tokenized, event.time))
                self._hand_over(event.time)
            elif event.kind is RequestEventKind.SCHEDULED:
                self._wait(event.time)
            elif event.kind is RequestEventKind.PREEMPTED:
                self._prefill(event.time)
            elif event.kind is RequestEventKind.FIRST_TOKEN:
                self._prefill(event.time)
                self._deliver(event.step)
                return self.parts
            elif event.kind is RequestEventKind.FINISHED:
                now = event.time
        if now is not None and now > self._now:
            held = self._last_kind() is RequestEventKind.SCHEDULED
            self._prefill(now) if held else self._wait(now)
        return self.parts

    def _last_kind(self) -> RequestEventKind | None:
        stations = (RequestEventKind.QUEUED, RequestEventKind.SCHEDULED, RequestEventKind.PREEMPTED)
        return next((event.kind for event in reversed(self._request.events) if event.kind in stations), None)

    def _add(self, kind: PartKind, until: float, **fields: Any) -> None:
        if until <= self._now:
            return
        self.parts.append(Part(kind=kind, start=self._now - self._begin, duration=until - self._now, **fields))
        self._now = until

    def _hand_over(self, until: float) -> None:
        """The engine takes requests between two steps, so this is mostly the rest of the one under way."""
        step = self._history.step_at(until)
        if step is None or step.start + step.duration < self._now:
            before = self._history.steps_between(self._now, until)
            step = before[-1] if before else None
        fields = {} if step is None else self._of_steps([step])
        self._add("handing over", until, **fields)

    def _wait(self, until: float) -> None:
        """In the queue; steps with the same reason make one part."""
        kind: PartKind = "preempted" if any(part.kind == "chunk" for part in self.parts) else "queued"
        steps = [step for step in self._history.steps_between(self._now, until) if step.start < until]
        groups: list[tuple[tuple[str, tuple[str, ...]], list[StepEvent]]] = []
        for step in steps:
            ahead = tuple(other.arrived.request_id for other in self._history.ahead_of(self._request, step.number))
            reason = (step.waiting_for, ahead)
            if groups and _category(groups[-1][0][0]) == _category(step.waiting_for) and groups[-1][0][1] == ahead:
                groups[-1][1].append(step)
            else:
                groups.append((reason, [step]))
        for index, ((waiting_for, ahead), members) in enumerate(groups):
            last = index == len(groups) - 1
            end = until if last else groups[index + 1][1][0].start
            fields = self._of_steps(members)
            self._add(kind, end, waiting_for=waiting_for, behind=list(ahead), **fields)
        self._add(kind, until)

    def _prefill(self, until: float) -> None:
        """From the admission on: each step, and what lies between them."""
        steps = self._history.steps_between(self._now, until)
        for step in steps:
            self._add("between steps", step.start)
            own = [chunk for chunk in step.chunks if chunk.number == self._lead.arrived.number]
            fields = self._of_steps([step])
            if own:
                fields |= {"first_token": own[0].start, "num_tokens": own[0].length}
                fields["others_seconds"] = self._others_seconds(step, until)
            self._add("chunk" if own else "left out", min(step.start + step.duration, until), **fields)
        self._add("between steps", until)

    def _deliver(self, step_number: int) -> None:
        step = self._history.step(step_number)
        if step is not None:
            self._add("delivering", step.start + step.duration, first_step=step_number, last_step=step_number)
        if self._request.sent_time is not None:
            self._add("sending", self._request.sent_time)

    @property
    def incomplete(self) -> bool:
        """Whether steps of its time are no longer known."""
        first_step, steps = self._request.arrived.step + 1, self._history.steps
        has_run = self._request.events[-1].step >= first_step
        return has_run and (not steps or steps[0].number > first_step)

    def _of_steps(self, steps: Sequence[StepEvent]) -> dict[str, Any]:
        others: Counter[str] = Counter()
        for step in steps:
            for chunk in step.chunks:
                if chunk.number != self._lead.arrived.number:
                    others[chunk.request_id] += chunk.length
        own = self._request.arrived.number
        return {
            "first_step": steps[0].number,
            "last_step": steps[-1].number,
            "num_decodes": sum(len(step.decode_numbers) - (own in step.decode_numbers) for step in steps),
            "others": [Work(id=request_id, tokens=tokens) for request_id, tokens in others.most_common()],
        }

    def _others_seconds(self, step: StepEvent, until: float) -> float:
        """How much shorter the step had been with its own chunk alone; by tokens where there is no cost model."""
        duration = min(step.start + step.duration, until) - step.start
        own = [chunk for chunk in step.chunks if chunk.number == self._lead.arrived.number]
        alone = work_of(0, 0, [(chunk.start, chunk.length) for chunk in own])
        if self._cost is None:
            return duration * (1 - alone.chunk_tokens / step.num_tokens)
        chunks = [(chunk.start, chunk.length) for chunk in step.chunks]
        predicted = self._cost(work_of(len(step.decode_numbers), self._history.decode_contexts(step), chunks))
        return duration * max(0.0, 1 - self._cost(alone) / predicted) if predicted > 0 else 0.0


def _category(waiting_for: str) -> str:
    return waiting_for.partition(":")[0]
