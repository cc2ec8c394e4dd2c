"""How the token budget of a step is spent."""

from __future__ import annotations

import numpy as np
import pytest

from tests.fake_model import context_hash, pick_token
from tests.scheduler.driver import BLOCK_SIZE, Driver


@pytest.mark.parametrize("cached", [0, 48])
@pytest.mark.parametrize("budget", [1, 15, 16, 17, 63, 64, 256])
def test_any_budget_gives_the_same_output_and_every_token_its_slot(budget: int, cached: int) -> None:
    driver = Driver(max_num_batched_tokens=budget, max_num_seqs=1)
    prompt = list(range(300, 500))
    if cached:
        driver.submit(prompt[: cached + 1], max_tokens=1)
        driver.run()
    before = len(driver.batches)
    request = driver.submit(prompt, max_tokens=3)
    driver.run()
    assert request.num_hit_tokens == cached
    steps = driver.batches[before:]
    assert len(steps) == -(-(200 - cached) // budget) + len(request.output_token_ids) - 1
    for batch in steps:
        table = batch.block_table[0].astype(np.int64)
        expected = table[batch.position_ids // BLOCK_SIZE] * BLOCK_SIZE + batch.position_ids % BLOCK_SIZE
        assert np.array_equal(batch.slot_mapping, expected)
    driver.assert_right()


def test_what_is_cached_costs_nothing_of_the_budget() -> None:
    driver = Driver(max_num_batched_tokens=64)
    prompt = list(range(300, 820))
    driver.submit(prompt[:513], max_tokens=1)
    driver.run()
    request = driver.submit(prompt, max_tokens=1)
    schedule = driver.step()
    assert schedule is not None
    assert [(chunk.start, chunk.length, chunk.hit_tokens, chunk.is_last) for chunk in schedule.chunks] == [
        (512, 8, 512, True)
    ]
    assert request.finished
    driver.assert_right()


def test_a_prompt_is_sampled_once_from_its_last_position() -> None:
    driver = Driver(max_num_batched_tokens=64)
    prompt = list(range(300, 500))
    request = driver.submit(prompt, max_tokens=1)
    driver.run()
    assert [len(schedule.sampled) for schedule in driver.schedules] == [0, 0, 0, 1]
    last = driver.batches[-1]
    assert last.position_ids[last.logits_rows].tolist() == [199]
    assert request.output_token_ids == [pick_token(context_hash(prompt), 0, 50)]


def test_a_running_stream_gets_a_token_in_every_step() -> None:
    driver = Driver(num_blocks=3000, max_model_len=5000, max_num_batched_tokens=256)
    stream = driver.submit([3] * 128, max_tokens=100, ignore_eos=True)
    driver.steps_until(stream, 5)
    for index in range(8):
        driver.submit([10 + index] * 4096, max_tokens=1, arrival_time=1.0)
    for _ in range(90):
        before = stream.num_output_tokens
        schedule = driver.step()
        assert schedule is not None
        assert schedule.decodes.requests[0] is stream
        assert schedule.num_tokens == 256  # the rest of the budget is used
        assert stream.num_output_tokens == before + 1


def test_a_short_prompt_behind_a_long_one_gets_its_first_token_within_two_steps() -> None:
    driver = Driver(num_blocks=2200, max_model_len=33_000, max_num_batched_tokens=512)
    long = driver.submit([3] * 32_768, max_tokens=1)
    driver.step()
    short = driver.submit([4] * 32, arrival_time=1.0, max_tokens=2, ignore_eos=True)
    assert driver.steps_until(short) <= 2
    assert not long.finished


@pytest.mark.parametrize("threshold", [0, 128])
def test_short_prompts_pass_several_long_ones(threshold: int) -> None:
    driver = Driver(
        num_blocks=2000, max_model_len=9000, max_num_batched_tokens=512, long_prefill_token_threshold=threshold
    )
    for index in range(3):
        driver.submit([10 + index] * 8192, max_tokens=1)
    driver.step()
    shorts = [driver.submit([20 + index] * 32, arrival_time=1.0, max_tokens=1) for index in range(2)]
    driver.step()
    driver.step()
    assert all(short.finished for short in shorts)
    driver.assert_right(*shorts)


def test_a_prompt_alone_takes_the_whole_budget_whatever_the_threshold() -> None:
    driver = Driver(max_num_batched_tokens=100, long_prefill_token_threshold=10)
    driver.submit([3] * 400, max_tokens=1)
    driver.run()
    assert [schedule.num_tokens for schedule in driver.schedules] == [100, 100, 100, 100]


@pytest.mark.parametrize(("threshold", "lengths"), [(0, [128 + 64, 64]), (16, [16 + 224, 16])])
def test_what_others_leave_goes_to_the_oldest(threshold: int, lengths: list[int]) -> None:
    driver = Driver(max_num_batched_tokens=256, num_blocks=200, long_prefill_token_threshold=threshold)
    old = driver.submit([3] * 900, max_tokens=1)
    new = driver.submit([4] * 900, max_tokens=1)
    schedule = driver.step()
    assert schedule is not None
    assert [chunk.request for chunk in schedule.chunks] == [old, new]
    assert [chunk.length for chunk in schedule.chunks] == lengths


def test_the_head_of_the_queue_waits_for_budget_and_the_schedule_says_so() -> None:
    driver = Driver(max_num_batched_tokens=64, num_blocks=200)
    driver.submit([3] * 200, max_tokens=1)
    driver.submit([4] * 200, max_tokens=1)
    schedule = driver.step()
    assert schedule is not None
    assert (schedule.num_waiting, schedule.waiting_for) == (1, "budget")


def test_a_budget_of_one_serves_one_request_after_the_other() -> None:
    driver = Driver(max_num_batched_tokens=1, max_num_seqs=1)
    for index in range(3):
        driver.submit([10 + index] * 5, max_tokens=3)
    driver.run()
    driver.assert_right()
    driver.assert_idle()


def test_a_thousand_short_requests_among_streams_leak_nothing() -> None:
    driver = Driver(num_blocks=300, max_num_batched_tokens=512, max_num_seqs=64)
    streams = [driver.submit([30 + index] * 50, max_tokens=40, ignore_eos=True) for index in range(4)]
    driver.steps_until(streams[-1], 2)
    for index in range(1000):
        driver.submit([index + 100] * 20, arrival_time=1.0, max_tokens=1)
    driver.run()
    driver.assert_right()
    driver.assert_idle()


def test_steps_must_be_committed_and_ended_one_after_the_other() -> None:
    driver = Driver()
    driver.submit([3] * 5)
    schedule = driver.scheduler.schedule()
    assert schedule is not None
    with pytest.raises(RuntimeError, match="step 1 is in flight: end or discard it first"):
        driver.scheduler.schedule()
    with pytest.raises(RuntimeError, match="step 1 must be committed before it ends"):
        driver.scheduler.end_step(schedule)
    with pytest.raises(ValueError, match=r"sampled_token_ids has shape \(2,\), expected \(1,\)"):
        driver.scheduler.commit(schedule, [1, 2])
    driver.scheduler.commit(schedule, [1])
    with pytest.raises(RuntimeError, match="step 1 was committed already"):
        driver.scheduler.commit(schedule, [1])
    driver.scheduler.end_step(schedule)
    with pytest.raises(RuntimeError, match="step 1 is not in flight"):
        driver.scheduler.commit(schedule, [1])
    with pytest.raises(RuntimeError, match="step 1 is not in flight"):
        driver.scheduler.build(schedule)


def test_an_idle_scheduler_has_nothing_to_schedule() -> None:
    assert Driver().scheduler.schedule() is None
