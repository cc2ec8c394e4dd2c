"""A trace that is played is the run that was recorded, as far as a trace knows it."""

from __future__ import annotations

import itertools

import pytest

from cudaprefill.client.engine_view import EngineView
from cudaprefill.observe.events import RequestEvent, RequestEventKind, StepEvent
from cudaprefill.observe.trace import Trace, TraceHeader
from cudaprefill.observe.trace_telemetry import trace_account, trace_telemetry
from cudaprefill.protocol.codec import ProtocolError
from cudaprefill.protocol.telemetry import TelemetrySnapshot
from tests.observe.test_trace import run_of_requests

ENGINE = {
    "model": "fake",
    "family": "llama",
    "num_parameters": 1,
    "dtype": "float32",
    "kv_cache_dtype": "float8_e4m3fn",
    "device": "cpu",
    "kernels": "none",
    "threads": 1,
    "max_model_len": 512,
    "block_size": 16,
    "num_blocks": 11,
    "block_bytes": 64,
    "max_num_batched_tokens": 64,
    "max_num_seqs": 4,
    "enable_prefix_caching": True,
}
SCHEDULER = {
    "block_size": 16,
    "enable_prefix_caching": True,
    "max_num_batched_tokens": 64,
    "long_prefill_token_threshold": 0,
    "itl_target_ms": None,
}


@pytest.fixture(scope="module")
def trace() -> Trace:
    header = TraceHeader("1.0", ENGINE, SCHEDULER, time=1000.0, unix_time=1.7e9)
    return Trace(header, run_of_requests(3, 9), 0, 0)


def test_the_view_of_a_trace_has_its_steps_requests_and_totals(trace: Trace) -> None:
    view = EngineView(max_finished=100)
    for _, message in trace_telemetry(trace):
        view.apply(message)
    assert [step.record.number for step in view.steps] == [step.number for step in trace.steps]
    assert [step.decodes for step in view.steps] == [frozenset(step.decode_numbers) for step in trace.steps]
    ends = {event.number: event for event in trace.request_events if event.kind is RequestEventKind.FINISHED}
    assert view.requests.keys() == ends.keys()
    for number, record in view.requests.items():
        assert record.state == "finished"
        assert (record.id, record.finish_reason) == (ends[number].request_id, ends[number].reason)
        assert record.output_tokens == ends[number].num_output_tokens
    last = trace.steps[-1]
    assert view.pool is not None
    assert (view.pool.free, view.pool.cached, view.pool.used) == (
        last.num_free_blocks,
        last.num_cached_blocks,
        last.num_used_blocks,
    )
    assert view.pool.taken == sum(step.num_blocks_taken for step in trace.steps)
    assert view.settings is not None
    assert view.settings.max_num_batched_tokens == 64


def test_which_blocks_are_used_and_what_they_waste_is_not_made_up(trace: Trace) -> None:
    view = EngineView()
    for _, message in itertools.islice(trace_telemetry(trace), 4):
        view.apply(message)
    assert view.pool is not None
    assert view.pool.used > 0
    assert len(view.blocks) == 0
    assert view.waste is None


def test_times_begin_at_the_first_event_and_never_go_back(trace: Trace) -> None:
    messages = list(trace_telemetry(trace))
    assert isinstance(messages[0][1], TelemetrySnapshot)
    times = [time for time, _ in messages]
    assert times[0] == 0.0
    assert times == sorted(times)
    assert all(message.time == pytest.approx(messages[0][1].time + time) for time, message in messages)


def test_stations_while_nothing_runs_are_told_at_their_time(trace: Trace) -> None:
    arrivals = [
        RequestEvent(RequestEventKind.ARRIVED, f"late {place}", 2000.0 + 10 * place, 0, number=place)
        for place in range(3)
    ]
    lonely = Trace(trace.header, list(arrivals), 0, 0)
    assert [time for time, _ in trace_telemetry(lonely)] == [0.0, 0.0, 10.0, 20.0]


def test_a_request_of_a_trace_is_explained(trace: Trace) -> None:
    account = trace_account(trace, "request 1")
    assert account.id == "request 1"
    assert sum(part.duration for part in account.parts) == pytest.approx(account.total)
    with pytest.raises(KeyError):
        trace_account(trace, "nobody")


@pytest.mark.parametrize("told", [True, False])
def test_the_kv_cache_has_the_dtype_that_a_trace_tells_and_an_older_one_plays_without(trace: Trace, told: bool) -> None:
    engine = {name: value for name, value in ENGINE.items() if told or name != "kv_cache_dtype"}
    header = TraceHeader("1.0", engine, SCHEDULER, time=1000.0, unix_time=1.7e9)
    _, snapshot = next(iter(trace_telemetry(Trace(header, trace.events, 0, 0))))
    assert isinstance(snapshot, TelemetrySnapshot)
    assert snapshot.engine.kv_cache_dtype == ("float8_e4m3fn" if told else "unknown")


def test_an_empty_trace_has_no_telemetry_and_a_strange_header_is_refused_by_name(trace: Trace) -> None:
    assert list(trace_telemetry(Trace(trace.header, [], 0, 0))) == []
    strange = TraceHeader("1.0", {**ENGINE, "num_blocks": "many"}, SCHEDULER, time=0.0, unix_time=0.0)
    with pytest.raises(ProtocolError, match="num_blocks"):
        list(trace_telemetry(Trace(strange, [event for event in trace.events if isinstance(event, StepEvent)], 0, 0)))
