"""The account of one request, from what is known of the run. Pure: looks at no clock and no engine."""

from __future__ import annotations

from typing import Literal

from cudaprefill.observe.events import RequestEventKind
from cudaprefill.observe.explain.history import History
from cudaprefill.observe.explain.late_tokens import find_late_tokens, token_steps
from cudaprefill.observe.explain.prefix import explain_prefix
from cudaprefill.observe.explain.timeline import Timeline
from cudaprefill.observe.explain.work import Cost
from cudaprefill.protocol.account import Account
from cudaprefill.protocol.itl_target import ItlTarget

State = Literal["waiting", "prefilling", "decoding", "finished"]
_STATES: dict[RequestEventKind, State] = {
    RequestEventKind.QUEUED: "waiting",
    RequestEventKind.SCHEDULED: "prefilling",
    RequestEventKind.FIRST_TOKEN: "decoding",
    RequestEventKind.PREEMPTED: "waiting",
    RequestEventKind.FINISHED: "finished",
}


def explain(
    history: History,
    request_id: str,
    *,
    itl_limit: float | None = None,
    cost: Cost | None = None,
    itl_target_ms: ItlTarget | None = None,
    now: float | None = None,
) -> Account:
    """Raises KeyError for a request that is not known.

    itl_limit: seconds; longer gaps between tokens are accounted for.
    cost: predicts a step's seconds; without it, what would have prevented a late token is not said.
    itl_target_ms: the engine's, to be told beside late tokens.
    now: seconds of the engine's clock, for a request that has no first token yet.
    """
    request = history.find(request_id)
    timeline = Timeline(history, request, cost)
    parts = timeline.run(now)
    first = request.first(RequestEventKind.FIRST_TOKEN)
    finished = request.first(RequestEventKind.FINISHED)
    late, num_late = ([], 0) if itl_limit is None else find_late_tokens(history, request, itl_limit, cost)
    states = [_STATES[event.kind] for event in request.events if event.kind in _STATES]
    state: State = states[-1] if states else "waiting"
    if state == "prefilling" and first is not None and _prefill_is_over(history, request.arrived.number):
        state = "decoding"
    return Account(
        id=request_id,
        number=request.arrived.number,
        state=state,
        finish_reason=finished.reason if finished is not None else None,
        prompt_tokens=request.arrived.num_prompt_tokens,
        virtual_tokens=request.arrived.num_virtual_tokens,
        adapter=request.arrived.adapter,
        output_tokens=len(token_steps(history, request)) if finished is None else finished.num_output_tokens,
        preemptions=sum(event.kind is RequestEventKind.PREEMPTED for event in request.events),
        ttft=None if first is None else first.time - request.arrived.time,
        total=parts[-1].start + parts[-1].duration if parts else 0.0,
        parts=parts,
        prefix=explain_prefix(history, request),
        itl_limit=itl_limit,
        itl_target_ms=itl_target_ms,
        late_tokens=late,
        num_late_tokens=num_late,
        incomplete=timeline.incomplete,
    )


def _prefill_is_over(history: History, number: int) -> bool:
    """Of a request that was preempted while it decoded, and admitted again."""
    return bool(history.steps) and number in history.steps[-1].decode_numbers
