"""What a listener is told, and that nobody pays for it otherwise."""

from __future__ import annotations

import numpy as np

from cudaprefill._core import BlockChangeKind, BlockState
from cudaprefill.engine.scheduler import Scheduler
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
    assert event.block_changes is None


def test_recorded_block_changes_replay_to_the_pools_states() -> None:
    driver = Driver(num_blocks=8)
    driver.scheduler.record_blocks(True)
    references = np.zeros(8, dtype=int)
    published = np.zeros(8, dtype=bool)
    lead = driver.submit([3] * 40, n=2, max_tokens=40, ignore_eos=True)
    driver.submit([4] * 40, arrival_time=1.0, max_tokens=40, ignore_eos=True)
    driver.submit([3] * 40, arrival_time=2.0, max_tokens=40, ignore_eos=True)
    while (schedule := driver.step()) is not None:
        assert schedule.block_changes is not None
        for kind, block in schedule.block_changes:
            references[block] += {
                BlockChangeKind.TAKEN: 1,
                BlockChangeKind.SHARED: 1,
                BlockChangeKind.UNSHARED: -1,
                BlockChangeKind.FREED: -1,
            }.get(kind, 0)
            if kind in (BlockChangeKind.PUBLISHED, BlockChangeKind.EVICTED):
                published[block] = kind == BlockChangeKind.PUBLISHED
        states = np.where(
            references == 0,
            np.where(published, BlockState.CACHED, BlockState.FREE),
            np.where(references == 1, BlockState.ACTIVE, BlockState.SHARED),
        )
        assert np.array_equal(states, driver.pool.states())
    assert lead.finished


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
        schedules.append(schedule)
    assert schedules[1].decodes is schedules[2].decodes
