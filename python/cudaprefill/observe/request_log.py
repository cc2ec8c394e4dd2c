"""Every request that lives, as it stands: events added up, once for metrics and telemetry both."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from cudaprefill.observe.events import RequestEvent, RequestEventKind, StepEvent
from cudaprefill.protocol.telemetry import RequestRecord

# A request that ends in one of these ways has got a token in the step of its end.
ENDS_BY_TOKEN = frozenset({"stop", "length"})


@dataclass
class StepTokens:
    """The tokens that left the engine in one step.

    itls: for each that was not its request's first, the seconds since the one before.
    ended: requests that ended by one of the tokens.
    """

    num_first_tokens: int = 0
    itls: list[float] = field(default_factory=list)
    ended: list[RequestRecord] = field(default_factory=list)

    @property
    def num_tokens(self) -> int:
        return self.num_first_tokens + len(self.itls)


class RequestLog:
    """Records by request number, in the order of arrival. Must be told of every event from the engine's start.

    A token of a decode leaves at the end of its step, a first token at the time of its event.

    step: the last one that ended.
    """

    def __init__(self) -> None:
        self.step = 0
        self._records: dict[int, RequestRecord] = {}  # those in `_tokens.ended` too, until their step's event
        self._tokens = StepTokens()  # of the step whose request events are coming in

    def __iter__(self) -> Iterator[RequestRecord]:
        """Those that wait or run."""
        return (record for record in self._records.values() if record.state != "finished")

    @property
    def num_waiting(self) -> int:
        return sum(record.state == "waiting" for record in self._records.values())

    @property
    def num_running(self) -> int:
        return sum(record.state in ("prefilling", "decoding") for record in self._records.values())

    def clear(self) -> None:
        """For a new engine."""
        self.step = 0
        self._records.clear()
        self._tokens = StepTokens()

    def apply(self, event: RequestEvent) -> RequestRecord | None:
        """The record after the event; None for a request that is not known."""
        if event.kind is RequestEventKind.ARRIVED:
            record = self._records[event.number] = RequestRecord(
                number=event.number,
                id=event.request_id,
                state="waiting",
                priority=event.priority,
                arrived=event.time,
                prompt_tokens=event.num_prompt_tokens,
                virtual_tokens=event.num_virtual_tokens or None,
                adapter=event.adapter,
                max_tokens=event.max_tokens,
            )
            return record
        known = self._records.get(event.number)
        if known is None or known.state == "finished":
            return None
        if event.kind is RequestEventKind.SCHEDULED:
            known.state = "prefilling"
            known.computed_tokens = event.hit_tokens
            if known.first_scheduled is None:
                known.first_scheduled = event.time
                known.hit_tokens = event.hit_tokens
        elif event.kind is RequestEventKind.CHUNK:
            self._chunk(known, event)
        elif event.kind is RequestEventKind.FIRST_TOKEN:
            known.state = "decoding"
            known.computed_tokens = known.prompt_tokens
            known.output_tokens = 1
            known.first_token = known.last_token = event.time
            self._tokens.num_first_tokens += 1
        elif event.kind is RequestEventKind.PREEMPTED:
            known.state = "waiting"
            known.computed_tokens = 0
            known.preemptions += 1
        elif event.kind is RequestEventKind.FINISHED:
            self._finish(known, event)
        return known

    def _chunk(self, record: RequestRecord, event: RequestEvent) -> None:
        """The last chunk after a preemption gives the next token, for which there is no event of its own."""
        record.num_chunks += 1
        record.computed_tokens = event.start + event.length
        if record.first_token is not None and record.computed_tokens == record.prompt_tokens + record.output_tokens:
            record.state = "decoding"
            self._count_token(record, event.time)

    def _finish(self, record: RequestRecord, event: RequestEvent) -> None:
        record.state = "finished"
        record.finished = event.time
        record.finish_reason = event.reason
        record.output_tokens = event.num_output_tokens
        if event.reason in ENDS_BY_TOKEN:
            self._tokens.ended.append(record)  # when its last token leaves is known at the end of the step
        else:
            del self._records[record.number]

    def apply_step(self, event: StepEvent) -> StepTokens:
        """What left in the step. All request events of the step must have come before."""
        self.step = event.number
        end = event.start + event.duration
        for number in event.decode_numbers:
            record = self._records.get(number)
            if record is not None:
                self._count_token(record, end)
        tokens, self._tokens = self._tokens, StepTokens()
        for record in tokens.ended:
            del self._records[record.number]
        return tokens

    def _count_token(self, record: RequestRecord, time: float) -> None:
        if record.last_token is not None:
            self._tokens.itls.append(time - record.last_token)
        record.last_token = time
        if record.state != "finished":  # then the number of tokens was told with the end
            record.output_tokens += 1
