"""What was recorded of telemetry explains a request as the events themselves do, as far as telemetry knows them."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cudaprefill.observe.events import RequestEvent, RequestEventKind, StepEvent
from cudaprefill.observe.request_log import RequestLog
from cudaprefill.observe.telemetry_log import TelemetryLog
from cudaprefill.observe.trace import Trace, TraceHeader
from cudaprefill.observe.trace_telemetry import trace_account, trace_telemetry
from cudaprefill.protocol.account import Account, PrefixAccount
from cudaprefill.protocol.codec import decode, encode
from cudaprefill.protocol.telemetry import SERVER_MESSAGES, TelemetrySnapshot, TelemetryUpdate
from tests.observe.test_trace import run_of_requests
from tests.observe.test_trace_telemetry import ENGINE, SCHEDULER

LIMIT_MS = 300.0  # a step of the run takes 250


def trace_of(seed: int, num_requests: int) -> Trace:
    header = TraceHeader("1.0", ENGINE, SCHEDULER, time=1000.0, unix_time=1.7e9)
    return Trace(header, run_of_requests(seed, num_requests), 0, 0)


def over_the_wire(message: TelemetrySnapshot | TelemetryUpdate) -> TelemetrySnapshot | TelemetryUpdate:
    again = decode(encode(message), SERVER_MESSAGES)
    assert isinstance(again, (TelemetrySnapshot, TelemetryUpdate))
    return again


def ids(trace: Trace) -> list[str]:
    return [event.request_id for event in trace.request_events if event.kind is RequestEventKind.ARRIVED]


def without_tokens(account: Account) -> Account:
    """What telemetry can know of it: where the prefix stopped, not why."""
    prefix = account.prefix
    if prefix is not None:
        reason = prefix.reason if prefix.reason in ("complete", "off") else "unknown"
        prefix = PrefixAccount(
            hit_tokens=prefix.hit_tokens,
            shareable_tokens=prefix.shareable_tokens,
            reason=reason,
            virtual_hit_tokens=prefix.virtual_hit_tokens,
            adapter=prefix.adapter,
        )
    return replace(account, prefix=prefix)


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 1000), num_requests=st.integers(1, 12))
def test_from_the_first_step_on_an_account_is_that_of_the_events(seed: int, num_requests: int) -> None:
    trace = trace_of(seed, num_requests)
    log = TelemetryLog()
    for _, message in trace_telemetry(trace):
        log.apply(over_the_wire(message))
    for request_id in ids(trace):
        expected = without_tokens(trace_account(trace, request_id, LIMIT_MS))
        assert log.account(request_id, LIMIT_MS) == expected
    with pytest.raises(KeyError):
        log.account("nobody")


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 1000), num_requests=st.integers(3, 12), cut=st.integers(1, 10**6))
def test_begun_in_the_middle_it_says_what_it_does_not_know(seed: int, num_requests: int, cut: int) -> None:
    trace = trace_of(seed, num_requests)
    (_, first), *updates = trace_telemetry(trace)
    assert isinstance(first, TelemetrySnapshot)
    known = RequestLog()
    place = cut % len(updates)
    end = updates[place - 1][1].time if place else first.time
    events = [event for event in trace.events if _end(event) <= end]
    for event in events:
        known.apply_step(event) if isinstance(event, StepEvent) else known.apply(event)
    steps = [event for event in trace.steps if _end(event) <= end]
    log = TelemetryLog()
    log.apply(replace(first, time=end, step=steps[-1].number if steps else 0, requests=list(known)))
    before = {record.id: record.number for record in known}
    decodes = steps[-1].decode_numbers if steps else ()
    for turn, (_, update) in enumerate(updates[place:]):
        assert isinstance(update, TelemetryUpdate)
        if turn == 0 and update.steps:  # a snapshot's set of decodes is empty
            step = update.steps[0]
            now = sorted({*decodes, *step.joined} - set(step.left))
            update = replace(update, steps=[replace(step, joined=now, left=[]), *update.steps[1:]])
        log.apply(update)
        decodes = ()
    for request_id in ids(trace):
        try:
            account = log.account(request_id, LIMIT_MS)
        except KeyError:  # it had ended before
            assert request_id not in before
            continue
        whole = without_tokens(trace_account(trace, request_id, LIMIT_MS))
        assert (account.ttft, account.output_tokens, account.state) == (whole.ttft, whole.output_tokens, whole.state)
        assert sum(part.duration for part in account.parts) == pytest.approx(account.total)
        if request_id not in before:
            assert replace(account, incomplete=whole.incomplete) == whole


def _end(event: RequestEvent | StepEvent) -> float:
    return event.start + event.duration if isinstance(event, StepEvent) else event.time


def test_another_engine_begins_anew() -> None:
    trace = trace_of(3, 4)
    (_, first), *updates = trace_telemetry(trace)
    log = TelemetryLog()
    log.apply(first)
    for _, update in updates:
        log.apply(update)
    log.account("request 1")
    assert isinstance(first, TelemetrySnapshot)
    log.apply(replace(first, reason="restarted", requests=[]))
    with pytest.raises(KeyError):
        log.account("request 1")


def test_before_a_snapshot_nothing_is_known() -> None:
    log = TelemetryLog()
    log.apply(TelemetryUpdate(sequence_number=0, time=1.0))
    with pytest.raises(KeyError):
        log.account("request 1")
