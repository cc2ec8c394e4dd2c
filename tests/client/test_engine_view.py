"""EngineView: a snapshot and updates give what is true in the engine."""

from __future__ import annotations

import copy
import itertools
from statistics import median

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cudaprefill.client.engine_view import EVICTED_SECONDS, EngineView
from cudaprefill.protocol.telemetry import (
    CACHED,
    RequestChange,
    StepRecord,
    TelemetrySnapshot,
    TelemetryUpdate,
)
from tests.tui.synthetic import START, SyntheticEngine


class Clock:
    def __init__(self) -> None:
        self.time = 0.0

    def __call__(self) -> float:
        return self.time


ACTIONS = st.one_of(
    st.tuples(st.just("submit"), st.integers(1, 200), st.integers(1, 90), st.integers(-1, 2)),
    st.tuples(st.just("step"), st.integers(1, 60)),
    st.tuples(st.just("abort"), st.integers(0, 10)),
    st.tuples(st.just("update")),
    st.tuples(st.just("snapshot"), st.sampled_from(["subscribed", "dropped"])),
)


@settings(max_examples=150, deadline=None)
@given(st.lists(ACTIONS, max_size=40), st.integers(0, 1000))
def test_a_view_holds_what_is_true_in_the_engine(actions: list[tuple[object, ...]], seed: int) -> None:
    engine = SyntheticEngine(num_blocks=20, seed=seed)
    view = EngineView(clock=Clock())
    view.apply(engine.snapshot())
    for kind, *arguments in actions:
        perform(engine, view, kind, arguments)
    view.apply(engine.update())
    assert_true(view, engine)


def perform(engine: SyntheticEngine, view: EngineView, kind: object, arguments: list[object]) -> None:
    if kind == "submit":
        prompt_tokens, max_tokens, document = arguments
        engine.submit(prompt_tokens, max_tokens, document=document)  # type: ignore[arg-type]
    elif kind == "step":
        for _ in range(arguments[0]):  # type: ignore[call-overload]
            engine.step()
    elif kind == "abort" and engine.requests:
        engine.abort(list(engine.requests)[arguments[0] % len(engine.requests)])  # type: ignore[operator]
    elif kind == "update":
        view.apply(engine.update())
    elif kind == "snapshot":
        view.apply(engine.update())
        view.apply(engine.snapshot(arguments[0]))  # type: ignore[arg-type]


def assert_true(view: EngineView, engine: SyntheticEngine) -> None:
    assert view.blocks.states.decode() == engine.blocks()
    assert view.pool == engine.pool()
    assert view.blocks.owners == {number: r.table for number, r in engine.requests.items() if r.table}
    for block in range(len(view.blocks)):
        owners = {number for number, request in engine.requests.items() if block in request.table}
        assert set(view.blocks.owners_of(block)) == owners
    everyone = {**engine.requests, **engine.finished}
    assert view.requests == {number: everyone[number].record for number in view.requests}
    assert set(view.requests) == set(everyone)
    scheduled = [r.record for r in everyone.values() if r.record.first_scheduled is not None]
    assert view.hit_tokens == sum(record.hit_tokens for record in scheduled)
    assert view.prompt_tokens == sum(record.prompt_tokens for record in scheduled)
    itls = 0
    for number, request in everyone.items():
        own = [later - earlier for earlier, later in itertools.pairwise(request.token_times)]
        itls += len(own)
        assert view.itl_p50(number) == (pytest.approx(median(own)) if own else None)
    assert view.itl.counts(view.time, 600).total == itls
    assert view.ttft.counts(view.time, 600).total == sum(r.record.first_token is not None for r in everyone.values())
    tokens = sum(len(request.token_times) for request in everyone.values())
    assert sum(second.output_tokens for second in view.history.seconds(view.time, 600)) == tokens


def test_each_step_knows_all_its_decodes() -> None:
    engine = SyntheticEngine()
    view = EngineView()
    view.apply(engine.snapshot())
    expected = {}
    for turn in range(40):
        if turn % 5 == 0:
            engine.submit(20 + turn, 6)
        decoding = {number for number, r in engine.requests.items() if r.record.state == "decoding"}
        engine.step()
        expected[engine.number] = decoding
        if turn % 3 == 0:
            view.apply(engine.update())
    view.apply(engine.update())
    assert {step.record.number: set(step.decodes) for step in view.steps} == expected
    assert all(step.record.num_decodes == len(step.decodes) for step in view.steps)
    assert view.step_view(7) is view.steps[6]
    assert view.step_view(1000) is None


def test_updates_before_the_first_snapshot_are_passed_over() -> None:
    engine = SyntheticEngine()
    engine.snapshot()
    engine.submit(5)
    engine.step()
    view = EngineView()
    view.apply(engine.update())
    assert view.engine is None
    assert not view.requests


def test_another_subscription_keeps_the_history_and_a_new_engine_does_not() -> None:
    engine, view = SyntheticEngine(), EngineView()
    view.apply(engine.snapshot())
    engine.submit(10, 4)
    for _ in range(6):
        engine.step()
    view.apply(engine.update())
    steps = len(view.steps)
    view.apply(engine.snapshot("subscribed"))
    assert len(view.steps) == steps > 0
    assert view.ttft.counts(view.time, 60).total == 1
    view.apply(SyntheticEngine().snapshot("restarted"))
    assert not view.steps
    assert not view.requests
    assert view.ttft.counts(view.time, 60).total == 0


def test_finished_requests_are_kept_up_to_a_number() -> None:
    engine, view = SyntheticEngine(), EngineView(max_finished=3)
    view.apply(engine.snapshot())
    for _ in range(8):
        engine.submit(4, 1)
    while engine.requests:
        engine.step()
    view.apply(engine.update())
    assert list(view.requests) == [6, 7, 8]


def test_steps_are_kept_up_to_a_number() -> None:
    engine, view = SyntheticEngine(), EngineView(max_steps=5)
    view.apply(engine.snapshot())
    engine.submit(4, 20)
    for _ in range(12):
        engine.step()
    view.apply(engine.update())
    assert [step.record.number for step in view.steps] == [8, 9, 10, 11, 12]
    assert view.num_steps == 12


def test_an_evicted_block_is_marked_for_a_while() -> None:
    clock = Clock()
    engine, view = SyntheticEngine(num_blocks=8), EngineView(clock=clock)
    engine.submit(100, 1, document=1)
    while engine.requests:
        engine.step()
    view.apply(engine.snapshot())
    engine.submit(120, 1, document=2)
    engine.step()
    engine.step()
    engine.step()
    watch = view.watch()
    watch.take()
    view.apply(engine.update())
    marked = set(view.blocks.evicted)
    assert len(marked) == engine.evicted > 0
    assert watch.take().blocks is not None
    clock.time += EVICTED_SECONDS + 0.1
    assert watch.take().blocks == marked
    assert not view.blocks.evicted


def test_a_watch_says_only_what_changed_since_it_was_asked() -> None:
    engine, view = SyntheticEngine(), EngineView()
    view.apply(engine.snapshot())
    early, late = view.watch(), view.watch()
    assert early.take().reset
    number = engine.submit(100, 3)
    engine.step()
    view.apply(engine.update())
    changes = early.take()
    assert (changes.reset, changes.steps, changes.requests) == (False, 1, frozenset({number}))
    assert changes.blocks == set(engine.requests[number].table)
    nothing = early.take()
    assert (nothing.steps, nothing.requests, nothing.blocks) == (0, frozenset(), frozenset())
    assert late.take().reset
    engine.settings = type(engine.settings)(max_num_batched_tokens=64, long_prefill_token_threshold=0)
    view.apply(engine.update())
    assert early.take().settings
    assert view.settings == engine.settings


def test_a_watch_that_slept_long_says_that_all_blocks_may_have_changed() -> None:
    engine, view = SyntheticEngine(), EngineView()
    view.apply(engine.snapshot())
    watch = view.watch()
    watch.take()
    for _ in range(600):
        engine.submit(20, 1)
        engine.step()
        view.apply(engine.update())
    assert watch.take().blocks is None


def test_lost_steps_give_no_itl_and_records_make_up_for_their_tokens() -> None:
    engine, view = SyntheticEngine(), EngineView()
    view.apply(engine.snapshot())
    number, other = engine.submit(4, 100), engine.submit(4, 100)
    for _ in range(5):
        engine.step()
    view.apply(engine.update())
    watch = view.watch()
    watch.take()
    before = view.itl.counts(view.time, 60).total
    engine.abort(other)
    for _ in range(4):
        engine.step()
    lossy = engine.update()
    assert lossy.steps is not None
    del lossy.steps[:3]
    lossy.dropped_steps = 3
    lossy.records = [copy.copy(engine.requests[number].record)]
    view.apply(lossy)
    assert view.requests[number] == engine.requests[number].record
    assert view.itl.counts(view.time, 60).total == before
    assert view.dropped_steps == 3
    assert watch.take().requests >= {number, other}
    engine.step()
    view.apply(engine.update())
    assert view.requests[number] == engine.requests[number].record
    assert view.itl.counts(view.time, 60).total == before + 1


def test_waste_and_hit_rate() -> None:
    engine, view = SyntheticEngine(), EngineView()
    view.apply(engine.snapshot())
    assert view.waste is None
    assert view.hit_rate is None
    engine.submit(24, 50, document=1)
    engine.step()
    view.apply(engine.update())
    assert view.waste == pytest.approx(1 - 25 / 32)
    engine.submit(24, 50, document=1)
    engine.step()
    view.apply(engine.update())
    assert view.hit_rate == pytest.approx(16 / 48)


def test_the_clock_goes_on_between_two_messages() -> None:
    clock = Clock()
    view = EngineView(clock=clock)
    view.apply(SyntheticEngine().snapshot())
    clock.time += 3
    assert view.now() == START + 3


def test_a_server_that_names_what_is_not_there_does_no_harm() -> None:
    engine, view = SyntheticEngine(num_blocks=4), EngineView()
    view.apply(engine.snapshot())
    view.apply(
        TelemetryUpdate(
            sequence_number=1,
            time=START,
            steps=[
                StepRecord(
                    number=-5,
                    start=0.0,
                    duration=-1.0,
                    token_budget=0,
                    num_decodes=-3,
                    joined=[99, -1],
                    left=[7],
                    chunks=[(98, -4, -9, 3)],
                    preempted=[1],
                    num_waiting=-2,
                    waiting_for="[bold",
                    blocks_taken=-1,
                    blocks_freed=0,
                    blocks_evicted=0,
                )
            ],
            requests=[
                RequestChange(kind="finished", number=77, time=-1.0, step=0),
                RequestChange(kind="arrived", number=5, time=0.0, step=0),
                RequestChange(kind="chunk", number=5, time=0.0, step=0),
                RequestChange(kind="first_token", number=5, time=-9.0, step=0),
            ],
            blocks=[(-1, "a"), (4, "a"), (0, ""), (1, "?"), (2, "x"), (3, CACHED)],
            owners={"x": (0, [1]), "5": (9, [-3, 10**12]), "²": (0, [])},
            dropped_steps=-4,
        )
    )
    assert view.blocks.states == b"...c"


def test_a_snapshot_may_leave_sections_out() -> None:
    full = SyntheticEngine().snapshot()
    view = EngineView()
    view.apply(
        TelemetrySnapshot(
            sequence_number=0,
            reason="subscribed",
            time=full.time,
            unix_time=full.unix_time,
            engine=full.engine,
            settings=full.settings,
            step=0,
            pool=full.pool,
        )
    )
    assert len(view.blocks) == 0
    assert not view.requests
