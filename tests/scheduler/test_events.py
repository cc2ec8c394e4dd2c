"""What a listener is told, and that nobody pays for it otherwise."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from cudaprefill._core import BlockState
from cudaprefill.engine.scheduler import Scheduler
from cudaprefill.errors import QueueFullError
from cudaprefill.observe.events import RequestEventKind
from tests.scheduler.driver import Driver


def kinds_of(driver: Driver, request_id: str) -> list[str]:
    return [event.kind.value for event in driver.events if event.request_id == request_id]


def test_the_life_of_a_request_is_told_in_order() -> None:
    driver = Driver(max_num_batched_tokens=32)
    driver.submit([3] * 40, arrival_time=-2.5, max_tokens=2, ignore_eos=True)
    driver.clock = 7.0
    driver.run()
    assert kinds_of(driver, "request-0") == [
        "arrived", "queued", "scheduled", "chunk", "chunk", "first_token", "finished",
    ]  # fmt: skip
    assert [event.time for event in driver.events] == [-2.5, 0.0, 7.0, 7.0, 7.0, 7.0, 7.0]
    chunks = [event for event in driver.events if event.kind is RequestEventKind.CHUNK]
    assert [(event.step, event.start, event.length) for event in chunks] == [(1, 0, 32), (2, 32, 8)]
    assert driver.events[-1].reason == "length"


def test_a_hit_is_told_when_the_request_is_scheduled_and_with_its_first_chunk() -> None:
    driver = Driver(max_num_batched_tokens=8, max_num_seqs=2)
    prompt = list(range(100, 150))
    driver.submit(prompt[:33], max_tokens=1)
    driver.run()
    driver.events.clear()
    driver.submit(prompt, max_tokens=1)
    driver.run()
    hits = [
        (event.kind.value, event.hit_tokens) for event in driver.events if event.kind.value in ("scheduled", "chunk")
    ]
    assert hits == [("scheduled", 32), ("chunk", 32), ("chunk", 0), ("chunk", 0)]


def test_siblings_have_lives_of_their_own() -> None:
    driver = Driver()
    driver.submit([3] * 40, n=2, max_tokens=2, ignore_eos=True)
    driver.run()
    assert kinds_of(driver, "request-0-1") == ["arrived", "queued", "scheduled", "first_token", "finished"]


def test_a_preempted_request_gets_its_first_token_once() -> None:
    driver = Driver(num_blocks=8)
    for index in range(2):
        driver.submit([10 + index] * 40, max_tokens=60, ignore_eos=True)
    driver.run()
    kinds = kinds_of(driver, "request-1")
    assert kinds.count("preempted") == kinds.count("scheduled") - 1 == driver.requests["request-1"].num_preemptions
    assert kinds.count("first_token") == kinds.count("arrived") == kinds.count("finished") == 1


def test_a_request_aborted_before_its_first_token_has_none() -> None:
    driver = Driver()
    request = driver.submit([3] * 40)
    schedule = driver.scheduler.schedule()
    assert schedule is not None
    driver.scheduler.abort(request.request_id)
    driver.finish_step(schedule)
    assert kinds_of(driver, "request-0") == ["arrived", "queued", "scheduled", "finished"]


def test_a_step_event_says_what_was_computed_and_what_it_took() -> None:
    driver = Driver(max_num_batched_tokens=32, max_num_seqs=2)
    driver.submit([3] * 20, max_tokens=2, ignore_eos=True)
    driver.step()
    driver.submit([4] * 40, arrival_time=1.0, max_tokens=5)
    driver.submit([5] * 40, arrival_time=2.0, max_tokens=5)
    schedule = driver.step()
    assert schedule is not None
    event = driver.scheduler.step_event(schedule, start=3.0, duration=0.5)
    assert (event.number, event.start, event.duration) == (2, 3.0, 0.5)
    assert (event.token_budget, event.num_tokens) == (32, 32)
    assert event.decode_ids == event.finished_ids == ("request-0",)
    (chunk,) = event.chunks
    assert (chunk.request_id, chunk.start, chunk.length, chunk.is_last) == ("request-1", 0, 31, False)
    assert (event.num_waiting, event.waiting_for) == (1, "budget")
    assert (event.num_blocks_taken, event.num_blocks_freed, event.num_blocks_evicted) == (2, 2, 0)
    assert (event.num_used_blocks, event.num_cached_blocks, event.num_free_blocks) == (2, 1, 61)
    assert event.predicted_duration is None


def test_block_changes_that_are_pulled_add_up_to_the_pools_states() -> None:
    driver = Driver(num_blocks=8)
    driver.scheduler.record_blocks(True)
    states = driver.pool.states()
    lead = driver.submit([3] * 40, n=2, max_tokens=40, ignore_eos=True)
    driver.submit([4] * 40, arrival_time=1.0, max_tokens=40, ignore_eos=True)
    driver.submit([3] * 40, arrival_time=2.0, max_tokens=40, ignore_eos=True)
    num_evicted = 0
    while (schedule := driver.step()) is not None:
        if schedule.number % 3:
            continue
        for block, state, evicted, _ in driver.scheduler.take_block_changes():
            assert state != states[block] or evicted
            states[block] = state
            num_evicted += evicted
        assert np.array_equal(states, driver.pool.states())
    assert lead.finished
    assert 0 < num_evicted <= driver.pool.num_evicted


def test_block_changes_tell_of_aborts_and_cache_resets_without_a_step() -> None:
    driver = Driver()
    request = driver.submit([3] * 40, max_tokens=5)
    driver.step()
    driver.scheduler.record_blocks(True)
    driver.scheduler.abort(request.request_id)
    changes = driver.scheduler.take_block_changes()
    assert sorted(state for _, state, *_ in changes) == [BlockState.FREE, BlockState.CACHED, BlockState.CACHED]
    driver.scheduler.reset_prefix_cache()
    changes = driver.scheduler.take_block_changes()
    assert [(state, evicted) for _, state, evicted, _ in changes] == [(BlockState.FREE, 1)] * 2
    assert len(driver.scheduler.take_block_changes()) == 0


def test_the_tokens_of_shared_blocks_count_once() -> None:
    driver = Driver()
    lead = driver.submit([3] * 40, n=3, max_tokens=5, ignore_eos=True)
    other = driver.submit([3] * 33, arrival_time=1.0, max_tokens=5, ignore_eos=True)
    driver.step()
    totals = driver.scheduler.pool_totals()
    # Two full blocks are everybody's once published; the lead and its siblings share the third, `other` has one.
    assert (totals.used, totals.used_tokens) == (4, 32 + 8 + 1)
    assert (totals.free, totals.cached, totals.taken) == (60, 0, driver.pool.num_taken)
    tables = driver.scheduler.block_tables()
    assert [tables[request.number].tolist() for request in (lead, *lead.siblings, other)] == [
        driver.scheduler.table.block_table(request.row) for request in (lead, *lead.siblings, other)
    ]
    driver.step()
    assert driver.scheduler.pool_totals().used_tokens == 32 + 3 * 9 + 2
    driver.run()
    assert driver.scheduler.pool_totals().used_tokens == 0
    assert driver.scheduler.block_tables() == {}


def test_numbers_are_given_once_and_name_requests_in_events_and_steps() -> None:
    driver = Driver()
    lead = driver.submit([3] * 40, n=2, max_tokens=2, ignore_eos=True, priority=-1)
    driver.run()
    again = driver.submit([4] * 20, max_tokens=None, request_id=lead.request_id)
    members = (lead, *lead.siblings, again)
    assert [request.number for request in members] == [1, 2, 3]
    arrived = [event for event in driver.events if event.kind is RequestEventKind.ARRIVED]
    assert [(e.number, e.priority, e.num_prompt_tokens, e.max_tokens) for e in arrived] == [
        (1, -1, 40, 2), (2, -1, 40, 2), (3, 0, 20, None),
    ]  # fmt: skip
    assert all(event.request_id == members[event.number - 1].request_id for event in driver.events)
    finished = [event for event in driver.events if event.kind is RequestEventKind.FINISHED]
    assert [(event.number, event.num_output_tokens) for event in finished] == [(1, 2), (2, 2)]
    first, second = (driver.scheduler.step_event(schedule, 0.0, 1.0) for schedule in driver.schedules)
    assert (first.chunks[0].number, first.decode_numbers, first.finished_numbers) == (1, (), ())
    assert (second.chunks, second.decode_numbers, second.finished_numbers) == ((), (1, 2), (1, 2))


def test_a_step_gives_its_events_its_own_times() -> None:
    driver = Driver()
    driver.submit([3] * 20, max_tokens=1)
    schedule = driver.scheduler.schedule(now=10.0)
    assert schedule is not None
    driver.scheduler.commit(schedule, [7], now=12.5)
    driver.clock = 99.0
    driver.scheduler.end_step(schedule)
    times = {event.kind.value: event.time for event in driver.events}
    assert times == {
        "arrived": 0.0, "queued": 0.0, "scheduled": 10.0, "chunk": 12.5, "first_token": 12.5, "finished": 12.5,
    }  # fmt: skip


def test_until_the_end_of_its_last_step_a_request_may_turn_out_to_have_ended_otherwise() -> None:
    driver = Driver()
    request = driver.submit([3] * 20, max_tokens=1)
    schedule = driver.scheduler.schedule()
    assert schedule is not None
    driver.scheduler.commit(schedule, [7])
    assert request.finish_reason == "length"
    driver.scheduler.finish(request, "stop", "seven")
    driver.scheduler.end_step(schedule)
    driver.scheduler.finish(request, "abort")
    assert (request.finish_reason, request.stop_reason) == ("stop", "seven")
    assert [event.reason for event in driver.events if event.kind is RequestEventKind.FINISHED] == ["stop"]


def test_a_request_that_is_refused_has_no_events() -> None:
    driver = Driver(num_blocks=4, max_num_seqs=1, max_num_queued_reqs=0)
    driver.submit([3] * 40, request_id="runs")
    driver.step()
    driver.events.clear()
    refused: list[tuple[list[int], dict[str, Any], str]] = [
        ([3] * 100, {}, "100 tokens"),
        ([], {}, "no tokens"),
        ([3] * 5, {"n": 2}, "n is 2"),
        ([3] * 5, {"request_id": "runs"}, "in use"),
    ]
    for prompt, options, reason in refused:
        with pytest.raises(ValueError, match=reason):
            driver.submit(prompt, **options)
    with pytest.raises(QueueFullError):
        driver.submit([3] * 5)
    assert driver.events == []


def test_a_block_is_described_with_its_owners_and_tokens() -> None:
    driver = Driver()
    request = driver.submit(list(range(100, 140)), n=2, max_tokens=5)
    driver.step()
    block = driver.scheduler.table.block_table(request.row)[1]
    info = driver.scheduler.table.describe(block)
    assert (info.state, info.reference_count, info.last_use) == (BlockState.SHARED, 2, 1)
    assert info.token_ids == list(range(116, 132))
    assert info.hash is not None
    assert driver.scheduler.block_owners(block) == ["request-0", "request-0-1"]


def test_a_decode_step_builds_nothing_per_request() -> None:
    driver = Driver(num_blocks=200, max_num_seqs=64, max_num_batched_tokens=512)
    scheduler = Scheduler(driver.config)
    for index in range(64):
        scheduler.add(driver.request([index + 100] * 5, request_id=str(index), max_tokens=None))
    schedules = []
    for _ in range(3):
        schedule = scheduler.schedule()
        assert schedule is not None
        scheduler.commit(schedule, [2] * len(schedule.sampled))
        scheduler.end_step(schedule)
        schedules.append(schedule)
    assert schedules[1].decodes is schedules[2].decodes
