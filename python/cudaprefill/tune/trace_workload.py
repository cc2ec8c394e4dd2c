"""A recorded trace as a workload: the same arrivals, lengths, shared prefixes and aborts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from cudaprefill.engine.scheduler_config import SchedulerConfig
from cudaprefill.observe.events import RequestEvent, RequestEventKind, StepEvent
from cudaprefill.observe.trace import Trace
from cudaprefill.tune.workload import Arrival, Workload


@dataclass
class _Recorded:
    arrived: RequestEvent
    num_outputs: Counter[int]
    ready: float = 0.0  # when the engine could have taken it
    finished: RequestEvent | None = None
    siblings: list[_Recorded] = field(default_factory=list)

    @property
    def num_output_tokens(self) -> int:
        if self.finished is not None:
            return self.finished.num_output_tokens
        return self.num_outputs[self.arrived.number]  # the trace ends before the request does

    @property
    def hashes(self) -> NDArray[np.uint64]:
        event = self.finished if self.finished is not None and self.finished.tokens is not None else self.arrived
        return np.empty(0, dtype=np.uint64) if event.tokens is None else event.tokens.block_hashes


def scheduler_config(trace: Trace) -> SchedulerConfig:
    """The settings of the recorded run."""
    known = SchedulerConfig.__dataclass_fields__
    return SchedulerConfig(**{name: value for name, value in trace.header.scheduler.items() if name in known})


def trace_workload(trace: Trace, source: str) -> Workload:
    """Raises ValueError if no request arrived in it."""
    leads = sorted(_leads(trace), key=lambda lead: lead.arrived.time)
    if not leads:
        raise ValueError(f"{source} has no requests")
    begin = leads[0].arrived.time
    block_size = scheduler_config(trace).block_size
    return Workload([_arrival(lead, begin, block_size) for lead in leads], source)


def _leads(trace: Trace) -> Sequence[_Recorded]:
    recorded: dict[int, _Recorded] = {}
    leads: dict[str, _Recorded] = {}
    num_outputs: Counter[int] = Counter()
    live: set[int] = set()
    in_flight: StepEvent | None = None  # the last step, if the engine had work to go on with after it
    for event in trace.events:
        if isinstance(event, StepEvent):
            num_outputs.update(event.decode_numbers)
            in_flight = event if live else None
        elif event.kind is RequestEventKind.ARRIVED:
            live.add(event.number)
            one = recorded[event.number] = _Recorded(event, num_outputs)
            lead = leads.get(event.request_id.rpartition("#")[0])
            if lead is not None and lead.arrived.time == event.time:
                lead.siblings.append(one)
            else:
                leads[event.request_id] = one
        elif event.number not in recorded:
            continue
        elif event.kind is RequestEventKind.QUEUED:
            recorded[event.number].ready = _ready(event, in_flight)
        elif event.kind is RequestEventKind.FIRST_TOKEN:
            num_outputs[event.number] += 1
        elif event.kind is RequestEventKind.FINISHED:
            live.discard(event.number)
            recorded[event.number].finished = event
    siblings = {id(sibling) for lead in leads.values() for sibling in lead.siblings}
    return [one for one in recorded.values() if id(one) not in siblings]


def _ready(queued: RequestEvent, in_flight: StepEvent | None) -> float:
    """An idle engine takes a request at once, one at work after the step in which it came and not the one before."""
    if in_flight is None:
        return queued.time
    return max(queued.tokenized or 0.0, in_flight.start)


def _arrival(lead: _Recorded, begin: float, block_size: int) -> Arrival:
    arrived, finished = lead.arrived, lead.finished
    aborted_after = None
    if finished is not None and finished.num_output_tokens == 0:
        aborted_after = finished.time - arrived.time
    return Arrival(
        id=arrived.request_id,
        time=arrived.time - begin,
        num_prompt_tokens=arrived.num_prompt_tokens,
        num_output_tokens=tuple(max(1, one.num_output_tokens) for one in (lead, *lead.siblings)),
        delay=max(0.0, lead.ready - arrived.time),
        priority=arrived.priority,
        prefix=lead.hashes,
        prefix_block=block_size,
        aborted_after=aborted_after,
    )
