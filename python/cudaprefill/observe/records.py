"""Events as telemetry tells them."""

from __future__ import annotations

from collections.abc import Sequence

from cudaprefill.observe.events import RequestEvent, RequestEventKind, StepEvent
from cudaprefill.protocol.telemetry import RequestChange, StepRecord


def request_change(event: RequestEvent) -> RequestChange:
    change = RequestChange(kind=event.kind.value, number=event.number, time=event.time, step=event.step)
    if event.kind is RequestEventKind.ARRIVED:
        change.id, change.priority = event.request_id, event.priority
        change.prompt_tokens, change.max_tokens = event.num_prompt_tokens, event.max_tokens
        change.virtual_tokens, change.adapter = event.num_virtual_tokens or None, event.adapter
    elif event.kind is RequestEventKind.QUEUED:
        change.tokenized = event.tokenized
    elif event.kind is RequestEventKind.SCHEDULED:
        change.hit_tokens = event.hit_tokens
    elif event.kind is RequestEventKind.CHUNK:
        change.start, change.length = event.start, event.length
    elif event.kind is RequestEventKind.FINISHED:
        change.output_tokens, change.reason = event.num_output_tokens, event.reason
    return change


def step_records(steps: Sequence[StepEvent], decodes: tuple[int, ...]) -> list[StepRecord]:
    """`decodes` are those of the step before the first."""
    records = []
    for step in steps:
        joined: list[int] = []
        left: list[int] = []
        if step.decode_numbers is not decodes:  # the same object as long as nobody joins or leaves
            before, now = set(decodes), set(step.decode_numbers)
            joined, left = sorted(now - before), sorted(before - now)
        decodes = step.decode_numbers
        records.append(
            StepRecord(
                number=step.number,
                start=step.start,
                duration=step.duration,
                token_budget=step.token_budget,
                num_decodes=len(step.decode_numbers),
                joined=joined,
                left=left,
                chunks=[(chunk.number, chunk.start, chunk.length, chunk.hit_tokens) for chunk in step.chunks],
                preempted=list(step.preempted_numbers),
                num_waiting=step.num_waiting,
                waiting_for=step.waiting_for,
                blocks_taken=step.num_blocks_taken,
                blocks_freed=step.num_blocks_freed,
                blocks_evicted=step.num_blocks_evicted,
            )
        )
    return records
