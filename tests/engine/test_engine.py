"""The engine on the fake model: what is sampled, sent, stopped and given back."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest

from cudaprefill.engine.output_delta import OutputDelta
from cudaprefill.outputs import RequestMetrics
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
    text_sent,
    tokens_of,
)

PROMPT = [7, 3, 9, 4, 11, 5]


def params(**fields: object) -> SamplingParams:
    return SamplingParams(**{"temperature": 0, "max_tokens": 8, "ignore_eos": True, **fields})  # type: ignore[arg-type]


def test_tokens_are_those_of_a_sequential_run_whatever_runs_beside() -> None:
    engine = make_engine(budget=48)
    prompts = {f"r{length}": [length % 50, *range(1, length)] for length in (1, 15, 16, 17, 33, 49)}
    for request_id, prompt in prompts.items():
        engine.submit(make_request(request_id, [token % 50 for token in prompt]))
    deltas = run_to_end(engine)
    for request_id, prompt in prompts.items():
        assert tokens_of(deltas, request_id) == expected([token % 50 for token in prompt])
    assert pool_is_idle(engine)


def test_the_text_is_that_of_the_tokens_and_the_last_delta_says_how_it_ended() -> None:
    engine = make_engine()
    engine.submit(make_request("r", PROMPT))
    deltas = run_to_end(engine)
    assert text_sent(deltas, "r") == text_of(expected(PROMPT))
    assert [delta.finish_reason for delta in deltas] == [None] * 7 + ["length"]
    assert [delta.request_finished for delta in deltas] == [False] * 7 + [True]


def test_a_stop_string_ends_the_request_and_neither_it_nor_what_follows_is_sent() -> None:
    tokens = expected(PROMPT)
    stop = text_of(tokens[3:6])
    engine = make_engine()
    engine.submit(make_request("r", PROMPT, params(stop=stop)))
    deltas = run_to_end(engine)
    assert text_sent(deltas, "r") == text_of(tokens[:3])
    assert (deltas[-1].finish_reason, deltas[-1].stop_reason) == ("stop", stop)
    assert tokens_of(deltas, "r") == tokens[:6]
    assert pool_is_idle(engine)


def test_a_stop_string_that_the_last_allowed_token_completes_counts_as_stop() -> None:
    tokens = expected(PROMPT)
    engine = make_engine()
    engine.submit(make_request("r", PROMPT, params(stop=text_of(tokens[-2:]))))
    deltas = run_to_end(engine)
    assert (deltas[-1].finish_reason, text_sent(deltas, "r")) == ("stop", text_of(tokens[:-2]))


def test_held_text_is_sent_when_the_request_ends_without_the_stop_string() -> None:
    tokens = expected(PROMPT)
    engine = make_engine()
    engine.submit(make_request("r", PROMPT, params(stop=text_of([*tokens[-2:], 49, 48]))))
    deltas = run_to_end(engine)
    assert (deltas[-1].finish_reason, text_sent(deltas, "r")) == ("length", text_of(tokens))


@pytest.mark.parametrize("include", [False, True])
def test_a_stop_token_ends_the_request_and_shows_in_the_text_only_when_asked(include: bool) -> None:
    tokens = expected(PROMPT)
    stop = tokens[4]
    end = tokens.index(stop) + 1
    engine = make_engine()
    engine.submit(make_request("r", PROMPT, params(stop_token_ids=[stop], include_stop_str_in_output=include)))
    deltas = run_to_end(engine)
    assert tokens_of(deltas, "r") == tokens[:end]
    assert (deltas[-1].finish_reason, deltas[-1].stop_reason) == ("stop", stop)
    assert text_sent(deltas, "r") == text_of(tokens[: end if include else end - 1])


def test_n_greedy_outputs_are_equal_and_each_ends_once() -> None:
    engine = make_engine()
    engine.submit(make_request("r", PROMPT, params(n=3)))
    deltas = run_to_end(engine)
    for index in range(3):
        assert tokens_of(deltas, "r", index) == expected(PROMPT)
    assert [delta.index for delta in deltas if delta.finish_reason] == [0, 1, 2]
    assert [delta.request_finished for delta in deltas if delta.finish_reason] == [False, False, True]
    assert pool_is_idle(engine)


def test_a_seeded_request_draws_the_same_tokens_whatever_the_neighbours() -> None:
    sampled = params(temperature=50.0, seed=5, n=2)

    def run(neighbours: int) -> list[list[int]]:
        engine = make_engine(num_blocks=24)
        for number in range(neighbours):
            engine.submit(make_request(f"n{number}", [number] * 40, params(max_tokens=30)))
        engine.submit(make_request("r", PROMPT, sampled))
        deltas = run_to_end(engine)
        return [tokens_of(deltas, "r", index) for index in range(2)]

    alone = run(0)
    assert alone[0] != alone[1]
    assert run(7) == alone


def test_a_row_of_nan_logits_ends_its_own_request_alone() -> None:
    engine = make_engine()
    assert isinstance(engine.model_runner, FakeRunner)
    engine.model_runner.nan_contexts = {len(PROMPT) + 4}
    engine.submit(make_request("bad", PROMPT))
    engine.submit(make_request("good", PROMPT * 5))
    deltas = run_to_end(engine)
    bad = [delta for delta in deltas if delta.request_id == "bad"]
    assert tokens_of(bad, "bad") == expected(PROMPT)[:4]
    assert bad[-1].finish_reason == "error"
    assert "NaN" in str(bad[-1].error)
    assert tokens_of(deltas, "good") == expected(PROMPT * 5)
    assert pool_is_idle(engine)


def test_nan_logits_of_a_prefill_end_all_n_outputs() -> None:
    engine = make_engine()
    assert isinstance(engine.model_runner, FakeRunner)
    engine.model_runner.nan_contexts = {len(PROMPT)}
    engine.submit(make_request("bad", PROMPT, params(n=3)))
    deltas = run_to_end(engine)
    assert [(delta.index, delta.finish_reason, delta.request_finished) for delta in deltas] == [
        (0, "error", False),
        (1, "error", False),
        (2, "error", True),
    ]
    assert pool_is_idle(engine)


def test_a_step_that_fails_raises_and_gives_the_blocks_of_its_requests_back() -> None:
    engine = make_engine()
    engine.submit(make_request("r", PROMPT, params(n=2)))
    engine.step()
    assert isinstance(engine.model_runner, FakeRunner)
    engine.model_runner.fails = OSError("the device fell off the bus")
    with pytest.raises(OSError, match="fell off the bus"):
        engine.step()
    assert pool_is_idle(engine)


@pytest.mark.parametrize("steps", [0, 1, 2, 5])
def test_an_abort_at_any_moment_ends_all_outputs_and_gives_the_blocks_back(steps: int) -> None:
    engine = make_engine(budget=64)
    engine.submit(make_request("gone", range(1, 50), params(n=2)))
    engine.submit(make_request("stays", PROMPT))
    before = [delta for _ in range(steps) for delta in engine.step()]
    ends = engine.abort("gone")
    assert [(delta.index, delta.finish_reason) for delta in ends] == [(0, "abort"), (1, "abort")]
    assert [delta.request_finished for delta in ends] == [False, True]
    assert engine.abort("gone") == []
    assert engine.abort("never heard of") == []
    assert tokens_of(before + run_to_end(engine), "stays") == expected(PROMPT)
    assert pool_is_idle(engine)


def test_what_can_never_run_is_refused_with_both_numbers_and_leaves_nothing_behind() -> None:
    engine = make_engine(num_blocks=4)
    with pytest.raises(ValueError, match=r"100 tokens.*64"):
        engine.submit(make_request("big", [1] * 100))
    assert not engine.has_work()
    engine.submit(make_request("small", PROMPT))
    assert tokens_of(run_to_end(engine), "small") == expected(PROMPT)


def test_preemption_changes_nothing_but_time() -> None:
    engine = make_engine(num_blocks=7, budget=64, enable_prefix_caching=False)
    prompts = {f"r{number}": [number + 1] * (20 + number) for number in range(4)}
    for request_id, prompt in prompts.items():
        engine.submit(make_request(request_id, prompt, params(max_tokens=40)))
    preempted = 0
    deltas = []
    while engine.has_work():
        deltas += engine.step()
        engine.check()
        preempted = max(preempted, engine.scheduler.num_waiting)
    assert preempted > 0
    for request_id, prompt in prompts.items():
        assert tokens_of(deltas, request_id) == expected(prompt, params(max_tokens=40))


def ticking() -> Callable[[], float]:
    """A clock that shows 1, 2, 3 ..., one step further with every look at it."""
    ticks = itertools.count(1)
    return lambda: float(next(ticks))


def last_metrics(deltas: list[OutputDelta], request_id: str, index: int = 0) -> RequestMetrics:
    metrics = [delta.metrics for delta in deltas if (delta.request_id, delta.index) == (request_id, index)][-1]
    assert metrics is not None
    return metrics


def test_the_wait_for_a_seat_is_part_of_ttft() -> None:
    engine = make_engine(max_num_seqs=1)
    engine._clock = ticking()
    engine.submit(make_request("first", PROMPT, params(max_tokens=20), arrival_time=0.5))
    engine.submit(make_request("second", PROMPT, arrival_time=0.5))
    deltas = run_to_end(engine)
    first, second = last_metrics(deltas, "first"), last_metrics(deltas, "second")
    assert (first.ttft, first.finished_time) == (1.5, 40.0)
    assert (second.queue_time, second.ttft) == (40.5, 41.5)


def test_a_preemption_resets_neither_ttft_nor_hits() -> None:
    engine = make_engine(num_blocks=4, max_num_seqs=2)
    engine._clock = ticking()
    old, new = make_request("old", [1] * 30, params(max_tokens=30)), make_request("new", [2] * 30, params(max_tokens=9))
    engine.submit(old)
    engine.submit(new)
    deltas = run_to_end(engine)
    assert new.num_preemptions > 0
    metrics = last_metrics(deltas, "new")
    assert (metrics.first_scheduled_time, metrics.first_token_time) == (1.0, 2.0)
    assert metrics.num_cached_tokens == 0
    assert max(metrics.itl) > 10.0  # the time without blocks is a gap between two tokens
    assert len(metrics.itl) == 8


def test_a_request_that_ends_before_its_first_token_has_no_ttft() -> None:
    engine = make_engine(budget=16)
    engine.submit(make_request("r", range(1, 50)))
    engine.step()
    metrics = last_metrics(engine.abort("r"), "r")
    assert (metrics.ttft, metrics.mean_itl, metrics.itl) == (None, None, [])


def test_every_output_has_its_metrics_with_its_first_and_its_last_delta() -> None:
    engine = make_engine()
    engine.submit(make_request("first", range(1, 34)))
    run_to_end(engine)
    engine.submit(make_request("r", range(1, 34), params(n=3)))
    deltas = run_to_end(engine)
    for index in range(3):
        told = [delta.metrics is not None for delta in deltas if delta.index == index]
        assert told == [True, *[False] * 6, True]
        metrics = last_metrics(deltas, "r", index)
        assert metrics.num_cached_tokens == 32
        assert metrics.first_scheduled_time is not None


def test_metrics_tell_hits_waiting_and_gaps_on_a_fake_clock() -> None:
    engine = make_engine(budget=16)
    engine._clock = ticking()
    engine.submit(make_request("r", range(1, 34), GREEDY, arrival_time=-10.0))
    first = run_to_end(engine)
    metrics = first[-1].metrics
    assert metrics is not None
    # Two readings of the clock a step (start, end of the forward pass), three steps of prefill.
    assert (metrics.first_scheduled_time, metrics.first_token_time) == (1.0, 6.0)
    assert (metrics.ttft, metrics.queue_time) == (16.0, 11.0)
    assert metrics.itl == [2.0] * 7
    assert metrics.num_cached_tokens == 0
    engine.submit(make_request("again", range(1, 34)))
    again = run_to_end(engine)[-1].metrics
    assert again is not None
    assert again.num_cached_tokens == 32


def test_logprobs_come_with_the_text_of_their_tokens() -> None:
    engine = make_engine()
    engine.submit(make_request("r", PROMPT, params(logprobs=2)))
    for delta in run_to_end(engine):
        assert delta.logprobs is not None
        sampled, *others = delta.logprobs[0].items()
        assert sampled[0] == delta.token_ids[0]
        assert (sampled[1].rank, sampled[1].decoded_token) == (1, text_of(delta.token_ids))
        assert len(others) == 1
        assert all(logprob.decoded_token == text_of([token]) for token, logprob in others)


def test_every_step_is_told_to_a_listener() -> None:
    engine = make_engine(budget=16)
    events = []
    engine.on_step = events.append
    engine.submit(make_request("r", range(1, 34)))
    run_to_end(engine)
    assert [event.num_tokens for event in events] == [16, 16, 1] + [1] * 7
    assert [len(event.decode_ids) for event in events] == [0, 0, 0] + [1] * 7
    assert events[-1].finished_ids == ("r",)
