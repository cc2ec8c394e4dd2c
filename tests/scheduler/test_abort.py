"""A request can be ended at any moment, once or twice, and gives everything back."""

from __future__ import annotations

import pytest

from tests.scheduler.driver import Driver


def test_a_request_that_ends_twice_in_a_step_frees_its_blocks_once() -> None:
    driver = Driver()
    request = driver.submit([3] * 40, max_tokens=1)
    schedule = driver.scheduler.schedule()
    assert schedule is not None
    driver.scheduler.abort(request.request_id)
    assert driver.pool.num_used == 3  # the step still writes to them
    driver.finish_step(schedule)
    driver.scheduler.abort(request.request_id)
    driver.scheduler.finish(request, "stop", "word")
    driver.check()
    assert (request.finish_reason, request.stop_reason, request.output_token_ids) == ("abort", None, [])
    assert schedule.finished == []
    driver.assert_idle()


def test_freeing_a_block_twice_is_an_error() -> None:
    driver = Driver()
    block = driver.pool.allocate()
    with pytest.raises(ValueError, match=f"block {block} is free already"):
        driver.pool.free([block, block])
    driver.pool.check()


@pytest.mark.parametrize("steps_before", [0, 1, 3, 7])
def test_an_abort_while_queued_prefilling_or_decoding_leaves_the_others_undisturbed(steps_before: int) -> None:
    driver = Driver(max_num_batched_tokens=64, max_num_seqs=3)
    requests = [driver.submit([10 + index] * 100, max_tokens=20, ignore_eos=True) for index in range(5)]
    for _ in range(steps_before):
        driver.step()
    for request in (requests[1], requests[4]):
        driver.scheduler.abort(request.request_id)
        driver.check()
        assert request.finish_reason == "abort"
        expected, _ = driver.expected(request)
        assert request.output_token_ids == expected[: len(request.output_token_ids)]
    driver.run()
    driver.assert_right(requests[0], requests[2], requests[3])
    driver.assert_idle()


def test_a_request_added_while_a_step_is_in_flight_does_not_get_the_tokens_of_an_aborted_one() -> None:
    driver = Driver()
    aborted = driver.submit([3] * 40, max_tokens=5)
    driver.step()
    schedule = driver.scheduler.schedule()
    assert schedule is not None
    driver.scheduler.abort(aborted.request_id)
    added = driver.submit([4] * 40, max_tokens=5)
    driver.finish_step(schedule)
    assert added.num_output_tokens == 0
    driver.run()
    driver.assert_right(added)


def test_an_unknown_id_is_ignored() -> None:
    Driver().scheduler.abort("nobody")


def test_a_stop_string_ends_a_request_between_two_steps() -> None:
    driver = Driver()
    request = driver.submit([3] * 40, max_tokens=50, ignore_eos=True)
    driver.steps_until(request, 4)
    driver.scheduler.finish(request, "stop", "five")
    driver.check()
    assert (request.finish_reason, request.stop_reason, request.num_output_tokens) == ("stop", "five", 4)
    driver.assert_idle()


def test_aborting_a_prefill_aborts_the_siblings_that_depend_on_it() -> None:
    driver = Driver(max_num_batched_tokens=32)
    lead = driver.submit([3] * 40, n=3)
    driver.step()
    driver.scheduler.abort(lead.request_id)
    driver.check()
    assert all(sibling.finish_reason == "abort" for sibling in lead.siblings)
    driver.assert_idle()


@pytest.mark.parametrize("in_flight", [False, True])
def test_a_sibling_aborted_before_the_fork_is_never_forked(in_flight: bool) -> None:
    driver = Driver(max_num_batched_tokens=64)
    lead = driver.submit([3] * 40, n=3, max_tokens=5)
    gone = lead.siblings[0]
    if in_flight:
        schedule = driver.scheduler.schedule()
        assert schedule is not None
        driver.scheduler.abort(gone.request_id)
        driver.finish_step(schedule)
    else:
        driver.scheduler.abort(gone.request_id)
    driver.run()
    assert gone.output_token_ids == []
    driver.assert_right(lead, lead.siblings[1])
    driver.assert_idle()


def test_a_failed_step_aborts_its_requests_and_spares_the_queue() -> None:
    driver = Driver(max_num_seqs=3)
    failing = driver.submit([3] * 40, n=2, max_tokens=5)
    running = driver.submit([4] * 40, max_tokens=5)
    queued = driver.submit([5] * 40, max_tokens=5)
    schedule = driver.scheduler.schedule()
    assert schedule is not None
    assert driver.scheduler.discard(schedule) == [failing, failing.siblings[0], running]
    driver.check()
    assert driver.pool.num_used == driver.pool.num_cached == 0
    driver.run()
    driver.assert_right(queued)
    driver.assert_idle()


def test_a_failed_step_gives_back_the_sources_of_its_copies() -> None:
    driver = Driver()
    driver.submit([3] * 40, n=3, max_tokens=5)
    driver.step()
    schedule = driver.scheduler.schedule()
    assert schedule is not None
    assert len(driver.scheduler.build(schedule).block_copies) == 2
    driver.scheduler.discard(schedule)
    driver.check()
    driver.assert_idle()
