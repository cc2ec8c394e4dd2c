"""Gaps between tokens above a limit: which step, whose chunk, and what would have prevented it."""

from __future__ import annotations

import itertools
from bisect import bisect_right

from cudaprefill.observe.events import RequestEventKind, StepEvent
from cudaprefill.observe.explain.history import History, RequestHistory
from cudaprefill.observe.explain.work import Cost, trimmed, work_of
from cudaprefill.protocol.account import LateToken, Prevention, Work

MOST_TOKENS = 5  # that are accounted for, the latest


def token_steps(history: History, request: RequestHistory) -> list[StepEvent]:
    """The steps that gave it a token, as far as they are known. A token leaves the engine at the end of its step."""
    first = request.first(RequestEventKind.FIRST_TOKEN)
    if first is None:
        return []
    number, lead = request.arrived.number, history.lead_of(request).arrived.number
    finished = request.first(RequestEventKind.FINISHED)
    steps = []
    for step in history.steps:
        if step.number < first.step or (finished is not None and step.number > finished.step):
            continue
        ends_prefill = any(chunk.is_last and chunk.number == lead for chunk in step.chunks)
        if number in step.decode_numbers or (ends_prefill and (lead == number or step.number == first.step)):
            steps.append(step)
    return steps


def find_late_tokens(
    history: History, request: RequestHistory, limit: float, cost: Cost | None
) -> tuple[list[LateToken], int]:
    """The latest of them, and how many there are."""
    steps = token_steps(history, request)
    first = request.first(RequestEventKind.FIRST_TOKEN)
    # The first tokens may be of steps that are no longer known.
    skipped = 0 if not steps or first is None else steps[0].number - first.step
    late = [
        (skipped + index, before, step)
        for index, (before, step) in enumerate(itertools.pairwise(steps), start=1)
        if _end(step) - _end(before) > limit
    ]
    return [_account(history, request, limit, cost, *each) for each in late[-MOST_TOKENS:]], len(late)


def _end(step: StepEvent) -> float:
    return step.start + step.duration


def _account(
    history: History,
    request: RequestHistory,
    limit: float,
    cost: Cost | None,
    token: int,
    before: StepEvent,
    step: StepEvent,
) -> LateToken:
    gap = _end(step) - _end(before)
    between = [other for other in history.steps if before.number < other.number <= step.number]
    slowest = max(between, key=lambda other: other.duration)
    number = request.arrived.number
    outside = gap - sum(other.duration for other in between)
    chunks = sorted((chunk for chunk in slowest.chunks if chunk.number != number), key=lambda chunk: -chunk.length)
    preempted = any(number in other.preempted_numbers for other in between)
    return LateToken(
        token=token,
        time=_end(step) - request.arrived.time,
        gap=gap,
        steps=[other.number for other in between],
        slowest_step=slowest.number,
        slowest_duration=slowest.duration,
        outside_steps=outside,
        preempted=preempted,
        num_decodes=len(slowest.decode_numbers),
        others=[Work(id=chunk.request_id, tokens=chunk.length) for chunk in chunks],
        preventions=[] if preempted or cost is None else _preventions(history, slowest, limit - outside, cost),
    )


def _preventions(history: History, step: StepEvent, limit: float, cost: Cost) -> list[Prevention]:
    """Settings with which this step's work is predicted to stay within `limit`.

    The model's prediction is scaled by how far it was off for the step as it went.
    """
    chunks = [(chunk.start, chunk.length) for chunk in step.chunks]
    num_decodes, context = len(step.decode_numbers), history.decode_contexts(step)
    num_chunk_tokens = sum(length for _, length in chunks)
    predicted = cost(work_of(num_decodes, context, chunks))
    if predicted <= 0 or limit <= 0:
        return []
    scale = step.duration / predicted

    def seconds(num_tokens: int) -> float:
        return scale * cost(work_of(num_decodes, context, trimmed(chunks, num_tokens)))

    if seconds(0) > limit:
        return [_fewer_decodes(num_decodes, context, limit, scale, cost)]
    # The most tokens of chunks that fit: seconds() never falls with more of them.
    most = bisect_right(range(1, num_chunk_tokens + 1), limit, key=seconds)
    if most == num_chunk_tokens:
        return []
    budget = num_decodes + most
    found = [
        Prevention(
            setting="--max-num-batched-tokens",
            value=budget,
            predicted=seconds(most),
            text=f"a budget of {budget:,} tokens leaves {most:,} for chunks beside the decodes ({num_decodes}): "
            f"the step takes {seconds(most) * 1e3:.0f} ms instead of {step.duration * 1e3:.0f}",
        )
    ]
    if most:
        found.append(
            Prevention(
                setting="--itl-target-ms",
                value=round(limit * 1e3, 1),
                predicted=seconds(most),
                text=f"a target of {limit * 1e3:.0f} ms lets the scheduler size each step's chunks by itself, "
                f"here {most:,} tokens instead of {num_chunk_tokens:,}",
            )
        )
    return found


def _fewer_decodes(num_decodes: int, context: int, limit: float, scale: float, cost: Cost) -> Prevention:
    def seconds(count: int) -> float:
        return scale * cost(work_of(count, context * count // num_decodes, ()))

    alone = seconds(num_decodes)
    fitting = bisect_right(range(1, num_decodes + 1), limit, key=seconds)
    if not fitting:
        return Prevention(
            setting="",
            value=0,
            predicted=alone,
            text=f"no setting: the decodes alone ({num_decodes}) take {alone * 1e3:.1f} ms, "
            f"and one of them takes longer than {limit * 1e3:.1f} ms",
        )
    return Prevention(
        setting="--max-num-seqs",
        value=fitting,
        predicted=seconds(fitting),
        text=f"the decodes alone ({num_decodes}) take {alone * 1e3:.0f} ms: no budget helps, "
        f"but {fitting} at once take {seconds(fitting) * 1e3:.0f} ms",
    )
