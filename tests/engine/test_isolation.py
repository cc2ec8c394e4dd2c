"""A fault in the work for one request ends that request, and nothing else."""

from __future__ import annotations

from typing import Any

import pytest

from cudaprefill.engine.engine import Engine
from cudaprefill.engine.output_delta import OutputDelta
from cudaprefill.observe.events import RequestEvent, RequestEventKind
from cudaprefill.sampling_params import SamplingParams
from tests.engine.harness import (
    GREEDY,
    FakeRunner,
    expected,
    make_engine,
    make_request,
    pool_is_idle,
    run_to_end,
    text_of,
    tokens_of,
)

PROMPT = [7, 3, 9, 4, 11, 5]


def params(**fields: Any) -> SamplingParams:
    return SamplingParams(**{"temperature": 0, "max_tokens": 8, "ignore_eos": True, **fields})


def fails(*args: object) -> Any:
    raise OSError("no such luck")


def break_output(engine: Engine, request_id: str, attribute: str) -> None:
    """From now on the work that `attribute` names raises for this output."""
    output = engine._outputs._outputs[request_id]
    if attribute == "text":
        output.text_stream.push = fails  # type: ignore[method-assign]
    else:
        broken = type("Broken", (), {"params": output.sampling_state.params, "greedy": property(fails)})
        output.sampling_state = broken()


def last_of(deltas: list[OutputDelta], request_id: str) -> OutputDelta:
    return [delta for delta in deltas if delta.request_id == request_id][-1]


def listen(engine: Engine) -> dict[str, list[RequestEvent]]:
    ends: dict[str, list[RequestEvent]] = {}

    def on_event(event: RequestEvent) -> None:
        if event.kind is RequestEventKind.FINISHED:
            ends.setdefault(event.request_id, []).append(event)

    engine.scheduler.on_event = on_event
    return ends


@pytest.mark.parametrize("work", ["text", "sampling"])
@pytest.mark.parametrize("steps", [0, 1, 3])
def test_work_that_raises_ends_its_own_request_with_the_error(work: str, steps: int) -> None:
    engine = make_engine()
    ends = listen(engine)
    for request_id in ("before", "bad", "behind"):
        engine.submit(make_request(request_id, PROMPT))
    deltas = [delta for _ in range(steps) for delta in engine.step()]
    break_output(engine, "bad", work)
    deltas += run_to_end(engine)
    end = last_of(deltas, "bad")
    assert (end.finish_reason, end.request_finished, str(end.error)) == ("error", True, "no such luck")
    assert tokens_of(deltas, "bad") == expected(PROMPT)[:steps]
    for request_id in ("before", "behind"):
        assert tokens_of(deltas, request_id) == expected(PROMPT)
    assert {request_id: [event.reason for event in events] for request_id, events in ends.items()} == {
        "bad": ["error"],
        "before": ["length"],
        "behind": ["length"],
    }
    assert pool_is_idle(engine)


def test_text_that_fails_with_the_last_token_is_an_error_everywhere() -> None:
    engine = make_engine()
    ends = listen(engine)
    engine.submit(make_request("bad", PROMPT, params(max_tokens=1)))
    break_output(engine, "bad", "text")
    (delta,) = run_to_end(engine)
    assert delta.finish_reason == ends["bad"][0].reason == "error"
    assert pool_is_idle(engine)


def test_one_of_n_outputs_may_fail_alone() -> None:
    engine = make_engine()
    engine.submit(make_request("r", PROMPT, params(n=3)))
    deltas = engine.step()
    break_output(engine, "r#1", "sampling")
    deltas += run_to_end(engine)
    ends = {delta.index: delta.finish_reason for delta in deltas if delta.finish_reason}
    assert ends == {0: "length", 1: "error", 2: "length"}
    assert [delta.request_finished for delta in deltas] == [False] * (len(deltas) - 1) + [True]
    assert pool_is_idle(engine)


def test_a_lead_that_fails_before_the_fork_takes_its_siblings_along_with_its_reason() -> None:
    engine = make_engine()
    ends = listen(engine)
    engine.submit(make_request("bad", PROMPT, params(n=2)))
    engine.submit(make_request("good", PROMPT))
    break_output(engine, "bad", "sampling")
    deltas = run_to_end(engine)
    bad = [delta for delta in deltas if delta.request_id == "bad"]
    assert [(delta.index, delta.finish_reason, str(delta.error)) for delta in bad] == [
        (0, "error", "no such luck"),
        (1, "error", "no such luck"),
    ]
    assert tokens_of(deltas, "good") == expected(PROMPT)
    assert [ends[request_id][0].reason for request_id in ("bad", "bad#1", "good")] == ["error", "error", "length"]
    assert pool_is_idle(engine)


def test_a_row_of_nan_ends_with_error_in_the_event_too_and_has_no_first_token() -> None:
    engine = make_engine()
    assert isinstance(engine.model_runner, FakeRunner)
    engine.model_runner.nan_contexts = {len(PROMPT)}
    events: list[RequestEvent] = []
    engine.scheduler.on_event = events.append
    engine.submit(make_request("bad", PROMPT))
    run_to_end(engine)
    assert [event.kind.value for event in events] == ["arrived", "queued", "scheduled", "finished"]
    assert (events[-1].reason, events[-1].num_output_tokens) == ("error", 0)


def test_an_abort_of_a_request_whose_text_fails_harms_nobody() -> None:
    engine = make_engine()
    engine.submit(make_request("bad", PROMPT))
    engine.submit(make_request("good", PROMPT))
    deltas = engine.step()
    engine._outputs._outputs["bad"].text_stream.finish = fails  # type: ignore[method-assign]
    (end,) = engine.abort("bad")
    assert (end.finish_reason, str(end.error)) == ("error", "no such luck")
    assert tokens_of(deltas + run_to_end(engine), "good") == expected(PROMPT)
    assert pool_is_idle(engine)


def test_a_request_whose_outputs_cannot_be_made_is_refused_and_leaves_nothing() -> None:
    engine = make_engine()
    engine._outputs.make = fails  # type: ignore[method-assign]
    with pytest.raises(OSError, match="no such luck"):
        engine.submit(make_request("bad", PROMPT))
    assert not engine.has_work()
    assert pool_is_idle(engine)


def test_the_event_and_the_output_agree_on_a_stop_string_that_the_last_allowed_token_completes() -> None:
    engine = make_engine()
    ends = listen(engine)
    stop = text_of(expected(PROMPT)[-2:])
    engine.submit(make_request("r", PROMPT, params(stop=stop)))
    end = run_to_end(engine)[-1]
    assert (end.finish_reason, end.stop_reason) == ("stop", stop)
    assert [(event.reason, event.num_output_tokens) for event in ends["r"]] == [("stop", 8)]


def test_events_and_metrics_tell_the_same_times() -> None:
    ticks = iter(range(1000))
    engine = make_engine(budget=16, clock=lambda: float(next(ticks)))
    events: list[RequestEvent] = []
    engine.scheduler.on_event = events.append
    engine.submit(make_request("r", range(1, 34), GREEDY))
    metrics = run_to_end(engine)[-1].metrics
    assert metrics is not None
    times = {event.kind: event.time for event in reversed(events)}
    assert times[RequestEventKind.SCHEDULED] == metrics.first_scheduled_time
    assert times[RequestEventKind.FIRST_TOKEN] == metrics.first_token_time
    assert times[RequestEventKind.FINISHED] == metrics.finished_time


@pytest.mark.parametrize("n", [1, 2])
@pytest.mark.parametrize("length", [10, 100])
def test_log_probabilities_of_a_prompt_that_fail_end_their_request_alone(
    length: int, n: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a chunk in the middle of its prefill as in the last one."""
    engine = make_engine()
    ends = listen(engine)
    engine.submit(make_request("good", PROMPT))
    engine.submit(make_request("bad", [number % 49 + 1 for number in range(length)], params(prompt_logprobs=1, n=n)))
    monkeypatch.setattr("cudaprefill.engine.engine.prompt_logprobs", fails)
    deltas = run_to_end(engine)
    bad = [delta for delta in deltas if delta.request_id == "bad"]
    assert [(delta.index, delta.finish_reason, str(delta.error)) for delta in bad] == [
        (index, "error", "no such luck") for index in range(n)
    ]
    assert bad[-1].request_finished
    assert tokens_of(deltas, "good") == expected(PROMPT)
    assert [event.reason for event in ends["bad"]] == ["error"]
    assert pool_is_idle(engine)
