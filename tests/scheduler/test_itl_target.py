"""With a target for the gap between two tokens, chunks are cut to fit; on a synthetic machine and its clock."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from cudaprefill.engine.chunk_room import LEAST_CHUNK_TOKENS
from cudaprefill.engine.step_cost import StepWork
from tests.scheduler.synthetic_machine import SyntheticMachine, fast_machine, slow_machine
from tests.scheduler.timed_run import Run

CASES = [(slow_machine, 0.2), (slow_machine, 1.0), (fast_machine, 0.03), (fast_machine, 0.015)]


@pytest.mark.parametrize(("machine", "target"), CASES)
@pytest.mark.parametrize("noise", [0.0, 0.05])
def test_steps_stay_within_the_target_and_make_use_of_it(
    machine: Callable[..., SyntheticMachine], target: float, noise: float
) -> None:
    run = Run(machine(noise), target)
    run.run_with_prompts(400)
    gaps = run.gaps()
    assert gaps[int(0.95 * len(gaps))] <= target
    assert gaps[-1] <= 1.3 * target
    full = [
        seconds
        for schedule, seconds in run.steps
        if schedule.chunks and not schedule.chunks[-1].is_last and schedule.num_tokens < schedule.token_budget
    ]
    assert sorted(full)[len(full) // 2] > 0.75 * target


@pytest.mark.parametrize("slowness", [0.5, 2.0])
def test_a_machine_that_becomes_another_is_learned_while_it_serves(slowness: float) -> None:
    run = Run(slow_machine(noise=0.03), 0.2)
    run.run_with_prompts(300)
    run.machine.slowness = slowness
    run.run_with_prompts(60)
    settled = len(run.steps)
    run.run_with_prompts(300)
    gaps = run.gaps(settled)
    assert gaps[int(0.95 * len(gaps))] <= 0.2
    assert gaps[len(gaps) // 2] > 0.14


def test_every_stream_gets_a_token_in_every_step() -> None:
    run = Run(slow_machine(0.1), 0.05)
    run.step()
    for number in range(200):
        if number % 20 == 0:
            run.prompt(3000)
        assert set(run.streams) <= set(run.step().decodes.requests)


def test_prompts_go_on_by_a_least_share_where_decodes_alone_take_the_time() -> None:
    run = Run(slow_machine(), 0.001)
    for _ in range(10):
        run.step()
    old = run.prompt(160)
    young = run.prompt(32)
    finished = []
    for _ in range(14):
        schedule = run.step()
        assert sum(chunk.length for chunk in schedule.chunks) in (LEAST_CHUNK_TOKENS, 0)
        finished += [chunk.request for chunk in schedule.chunks if chunk.is_last]
    assert finished == [old, young]  # the oldest first, 16 tokens a step


def test_the_head_of_the_queue_waits_for_the_target_and_says_so() -> None:
    run = Run(slow_machine(), 0.001)
    for _ in range(10):
        run.step()
    run.prompt(160)
    run.prompt(32)
    assert run.step().waiting_for == "itl target"


def test_the_budget_stays_the_upper_bound() -> None:
    run = Run(fast_machine(), 100.0, budget=256)
    run.run_with_prompts(100)
    assert max(schedule.num_tokens for schedule, _ in run.steps) == 256


def test_without_running_streams_a_prompt_gets_the_whole_budget_whatever_the_target() -> None:
    run = Run(slow_machine(), 0.001, streams=0)
    run.prompt(4096, max_tokens=1)
    assert [run.step().num_tokens, run.step().num_tokens] == [2048, 2048]


def test_without_a_target_durations_decide_nothing() -> None:
    steps = []
    for slowness in (1.0, 1000.0):
        run = Run(slow_machine(), None)
        run.machine.slowness = slowness
        run.run_with_prompts(100)
        steps.append([[chunk[1:] for chunk in schedule.chunks] for schedule, _ in run.steps])
    assert steps[0] == steps[1]


def test_a_short_prompt_does_not_wait_out_a_long_one() -> None:
    run = Run(slow_machine(), 0.4)
    run.run_with_prompts(200)
    while run.step().chunks:
        pass
    run.prompt(6000)
    run.step()
    short = run.prompt(32)
    run.step()
    run.step()
    assert short.num_output_tokens > 0


def test_the_target_can_be_set_and_taken_away_while_requests_run() -> None:
    run = Run(slow_machine(), None)
    run.run_with_prompts(100)
    run.prompt(14_000)
    assert run.step().num_tokens == 2048
    run.scheduler.change_settings(itl_target_ms=200.0)
    gap = run.machine.seconds(run.step().work)
    assert gap < 0.2
    run.scheduler.change_settings(itl_target_ms=0)
    assert run.step().num_tokens == 2048


def test_schedules_tell_what_was_expected_of_them() -> None:
    run = Run(slow_machine(), 0.2)
    first = run.step()
    assert first.predicted_duration is None
    assert first.work == StepWork(chunk_tokens=80, chunk_pairs=4 * 200.0)
    run.run_with_prompts(200)
    for schedule, seconds in run.steps[-50:]:
        assert schedule.predicted_duration == pytest.approx(seconds, rel=0.05)


def test_a_hit_is_told_with_the_first_chunk_however_late_that_comes() -> None:
    run = Run(slow_machine(), 0.001)
    prompt = list(range(100, 200))
    run.scheduler.add(run.driver.request(prompt, request_id="first", max_tokens=1))
    while run.scheduler.num_running > len(run.streams) or run.scheduler.num_waiting:
        run.step()
    run.prompt(64)
    again = run.driver.request([*prompt, 7], request_id="again", max_tokens=1, arrival_time=run.driver.clock)
    run.scheduler.add(again)
    hits = []
    while not again.finished:
        hits += [chunk.hit_tokens for chunk in run.step().chunks if chunk.request is again]
    assert hits[0] == 96
    assert set(hits[1:]) <= {0}
