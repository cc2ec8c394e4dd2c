"""What is refused at once, what waits, and how long an output may get."""

from __future__ import annotations

import pytest

from cudaprefill.engine.scheduler_config import SchedulerConfig
from cudaprefill.errors import QueueFullError
from tests.scheduler.driver import Driver


def test_a_prompt_larger_than_the_pool_is_refused_and_the_one_behind_it_finishes() -> None:
    driver = Driver(num_blocks=9, max_model_len=512)
    with pytest.raises(ValueError, match=r"150 tokens, but the KV cache holds 144"):
        driver.submit([3] * 150, max_tokens=1)
    driver.submit([3] * 16, max_tokens=4)
    driver.run()
    driver.assert_right()


@pytest.mark.parametrize("max_tokens", [1, 8])
def test_a_prompt_that_fills_the_pool_gets_one_token(max_tokens: int) -> None:
    driver = Driver(num_blocks=9, max_model_len=512)
    request = driver.submit([3] * 144, max_tokens=max_tokens, ignore_eos=True)
    driver.run()
    assert (len(request.output_token_ids), request.finish_reason) == (1, "length")
    driver.assert_right()
    driver.assert_idle()


def test_a_lone_request_that_fills_the_pool_ends_with_length_and_the_next_one_is_fine() -> None:
    driver = Driver(num_blocks=2)
    request = driver.submit([3] * 31, max_tokens=50, ignore_eos=True)
    driver.run()
    assert (len(request.output_token_ids), request.finish_reason) == (2, "length")
    assert request.num_preemptions == 0
    following = driver.submit([8] * 31, max_tokens=1)
    driver.run()
    driver.assert_right(request, following)
    driver.assert_idle()


@pytest.mark.parametrize(("length", "num_output"), [(62, 2), (63, 1)])
def test_prompt_and_output_never_exceed_max_model_len(length: int, num_output: int) -> None:
    driver = Driver(max_model_len=64)
    request = driver.submit([3] * length, max_tokens=10, ignore_eos=True)
    driver.run()
    assert (len(request.output_token_ids), request.finish_reason) == (num_output, "length")
    driver.assert_right()


@pytest.mark.parametrize("length", [64, 65])
def test_a_prompt_that_leaves_no_room_for_an_output_is_refused(length: int) -> None:
    driver = Driver(max_model_len=64)
    with pytest.raises(ValueError, match=rf"{length} tokens and leaves no room for an output: max_model_len is 64"):
        driver.submit([3] * length, max_tokens=10)


def test_an_empty_prompt_is_refused_and_does_not_harm_its_neighbours() -> None:
    driver = Driver()
    driver.submit([3] * 20, max_tokens=3)
    with pytest.raises(ValueError, match="the prompt has no tokens"):
        driver.submit([], max_tokens=3)
    driver.submit([0], max_tokens=3)
    driver.run()
    assert len(driver.requests) == 2
    driver.assert_right()


def test_more_completions_than_seats_are_refused() -> None:
    driver = Driver(max_num_seqs=3)
    with pytest.raises(ValueError, match="n is 4, but max_num_seqs is 3"):
        driver.submit([3] * 20, n=4)
    driver.submit([3] * 20, n=3, max_tokens=3)
    driver.run()
    driver.assert_right()


def test_an_id_in_use_is_refused() -> None:
    driver = Driver()
    driver.submit([3], request_id="a")
    with pytest.raises(ValueError, match="request id 'a' is in use"):
        driver.submit([4], request_id="a")
    driver.run()
    driver.submit([5], request_id="a")


def test_a_refused_request_leaves_nothing_behind() -> None:
    driver = Driver(max_num_seqs=2, max_num_queued_reqs=0)
    for prompt, n in (([], 1), ([3] * 5000, 1), ([3], 3)):
        with pytest.raises(ValueError, match=r"tokens|max_num_seqs"):
            driver.submit(prompt, n=n)
    driver.assert_idle()
    assert driver.events == []


def test_a_full_queue_refuses_with_both_numbers_and_running_requests_do_not_count() -> None:
    driver = Driver(max_num_seqs=2, max_num_queued_reqs=3)
    for _ in range(5):
        driver.submit([3] * 20, max_tokens=5)
    with pytest.raises(QueueFullError, match="5 requests are waiting, max_num_queued_reqs is 3 and 2 seats are free"):
        driver.submit([3] * 20)
    driver.step()
    with pytest.raises(QueueFullError, match="3 requests are waiting"):
        driver.submit([3] * 20)
    driver.run()
    driver.assert_right()


def test_without_a_queue_a_request_is_taken_only_for_a_free_seat() -> None:
    driver = Driver(max_num_seqs=1, max_num_queued_reqs=0)
    driver.submit([3] * 20, max_tokens=5)
    driver.step()
    with pytest.raises(QueueFullError, match="0 requests are waiting"):
        driver.submit([3] * 20)
    driver.run()
    driver.submit([3] * 20, max_tokens=5)


def test_a_prompt_waits_for_a_seat_and_the_schedule_says_so() -> None:
    driver = Driver(max_num_seqs=2)
    first = driver.submit([3] * 20, n=2, max_tokens=4, ignore_eos=True)
    second = driver.submit([4] * 20, max_tokens=4)
    schedule = driver.step()
    assert schedule is not None
    assert (schedule.num_waiting, schedule.waiting_for) == (1, "seats: needs 1, 0 free")
    driver.run()
    assert first.num_output_tokens == 4
    driver.assert_right(first, second)


def test_a_prompt_waits_for_blocks_and_the_schedule_says_so() -> None:
    driver = Driver(num_blocks=4)
    driver.submit([3] * 33, max_tokens=5, ignore_eos=True)
    driver.submit([4] * 33, max_tokens=5)
    schedule = driver.step()
    assert schedule is not None
    assert (schedule.num_waiting, schedule.waiting_for) == (1, "blocks: needs 3, 1 available")
    driver.run()
    assert all(request.num_preemptions == 0 for request in driver.requests.values())
    driver.assert_right()


def test_a_prompt_leaves_a_block_for_every_decode_so_that_it_is_not_preempted_for_it() -> None:
    driver = Driver(num_blocks=4)
    stream = driver.submit([3] * 15, max_tokens=20, ignore_eos=True)
    driver.step()
    prompt = driver.submit([4] * 40, max_tokens=2)
    schedule = driver.step()
    assert schedule is not None
    assert (schedule.num_waiting, schedule.waiting_for) == (1, "blocks: needs 3, 2 available")
    driver.run()
    assert stream.num_preemptions == prompt.num_preemptions == 0
    driver.assert_right()


def test_prompts_are_not_admitted_on_blocks_that_were_promised_to_others() -> None:
    driver = Driver(num_blocks=8, max_num_batched_tokens=32)
    first = driver.submit([3] * 100, max_tokens=2)
    second = driver.submit([4] * 30, max_tokens=2)
    driver.step()
    assert driver.pool.num_used == 2  # of the seven blocks that the first prompt will need
    assert second.num_output_tokens == 0
    driver.run()
    assert first.num_preemptions == second.num_preemptions == 0
    driver.assert_right()


def test_lower_priority_values_leave_the_queue_first_and_equals_by_arrival() -> None:
    driver = Driver(max_num_seqs=1)
    late = driver.submit([3] * 5, arrival_time=3.0, max_tokens=1)
    early = driver.submit([4] * 5, arrival_time=1.0, max_tokens=1)
    urgent = driver.submit([5] * 5, arrival_time=9.0, priority=-1, max_tokens=1)
    order = []
    while driver.scheduler.has_work():
        schedule = driver.step()
        assert schedule is not None
        order += schedule.finished
    assert order == [urgent, early, late]


def test_an_output_ends_with_eos_a_stop_token_or_its_length() -> None:
    driver = Driver(vocab_size=4)
    by_eos = driver.submit([2] * 9, max_tokens=100)
    by_stop = driver.submit([2] * 9, max_tokens=100, stop_token_ids=[2], ignore_eos=True)
    by_length = driver.submit([2] * 9, max_tokens=12, ignore_eos=True)
    driver.run()
    assert (by_eos.finish_reason, by_eos.stop_reason, by_eos.output_token_ids[-1]) == ("stop", None, 1)
    assert (by_stop.finish_reason, by_stop.stop_reason, by_stop.output_token_ids[-1]) == ("stop", 2, 2)
    assert (by_length.finish_reason, by_length.stop_reason) == ("length", None)
    driver.assert_right()


def test_a_first_token_may_be_the_last() -> None:
    driver = Driver(vocab_size=2)
    prompt = next([2] * length for length in range(1, 50) if driver.expected(driver.request([2] * length))[0] == [1])
    request = driver.submit(prompt, max_tokens=100)
    driver.run()
    assert (request.output_token_ids, request.finish_reason) == ([1], "stop")
    driver.assert_idle()


def test_nothing_ends_a_request_before_min_tokens() -> None:
    driver = Driver(vocab_size=2)
    request = driver.submit([2] * 9, min_tokens=20, max_tokens=40)
    driver.run()
    assert 20 <= len(request.output_token_ids) <= 40
    assert 1 in request.output_token_ids[:19]
    driver.assert_right()


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"max_num_batched_tokens": 7}, r"max_num_batched_tokens \(7\) must be at least max_num_seqs \(8\)"),
        ({"num_blocks": 0}, "num_blocks must be at least 1, got 0"),
        ({"block_size": 0}, "block_size must be at least 1, got 0"),
        ({"max_model_len": 1}, "max_model_len must be at least 2, got 1"),
        ({"max_num_seqs": 0}, "max_num_seqs must be at least 1, got 0"),
        ({"long_prefill_token_threshold": -1}, "long_prefill_token_threshold must be at least 0, got -1"),
        ({"max_num_queued_reqs": -1}, "max_num_queued_reqs must be at least 0, got -1"),
    ],
)
def test_a_wrong_setting_is_refused_by_name(changed: dict[str, int], message: str) -> None:
    right = {"num_blocks": 8, "max_model_len": 64, "max_num_batched_tokens": 8, "max_num_seqs": 8}
    SchedulerConfig(**right)
    with pytest.raises(ValueError, match=message):
        SchedulerConfig(**(right | changed))
