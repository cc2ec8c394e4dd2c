"""Several completions of one prompt share its blocks until they write."""

from __future__ import annotations

import pytest

from cudaprefill._core import BlockState
from tests.scheduler.driver import Driver


@pytest.mark.parametrize("length", [15, 16, 17, 32, 40])
@pytest.mark.parametrize("n", [2, 5])
def test_each_completion_is_what_it_would_be_alone(length: int, n: int) -> None:
    driver = Driver()
    driver.submit(list(range(100, 100 + length)), n=n, max_tokens=25)
    driver.run()
    assert len(driver.requests) == n
    driver.assert_right()
    driver.assert_idle()


def test_the_prompt_is_computed_once_and_its_logits_are_shared() -> None:
    driver = Driver()
    lead = driver.submit([3] * 40, n=3, max_tokens=5, ignore_eos=True)
    schedule = driver.step()
    assert schedule is not None
    assert schedule.num_tokens == 40
    assert list(schedule.sampled) == [lead, *lead.siblings]
    assert schedule.sample_rows.tolist() == [0, 0, 0]
    assert driver.pool.num_used == 3
    assert (driver.pool.states() == BlockState.SHARED).sum() == 3


def test_the_shared_tail_is_copied_for_all_but_its_last_holder() -> None:
    driver = Driver()
    driver.submit([3] * 40, n=3, max_tokens=5, ignore_eos=True)
    driver.step()
    driver.step()
    assert len(driver.batches[-1].block_copies) == 2
    assert driver.pool.num_used == 5  # two full blocks for all, a tail for each
    driver.step()
    assert len(driver.batches[-1].block_copies) == 0


def test_full_blocks_need_no_copies() -> None:
    driver = Driver()
    driver.submit([3] * 32, n=3, max_tokens=5, ignore_eos=True)
    driver.step()
    driver.step()
    assert len(driver.batches[-1].block_copies) == 0
    assert driver.pool.num_used == 5


def test_sampled_tokens_are_mapped_to_logits_beside_decodes_and_other_chunks() -> None:
    driver = Driver()
    decoding = driver.submit([3] * 40, max_tokens=5, ignore_eos=True)
    driver.step()
    lead = driver.submit([4] * 40, n=2, arrival_time=1.0, max_tokens=2)
    other = driver.submit([5] * 40, arrival_time=2.0, max_tokens=2)
    schedule = driver.step()
    assert schedule is not None
    assert list(schedule.sampled) == [decoding, lead, lead.siblings[0], other]
    assert schedule.sample_rows.tolist() == [0, 1, 1, 2]
    driver.run()
    driver.assert_right()


def test_siblings_need_their_seats_before_the_prefill_starts() -> None:
    driver = Driver(max_num_seqs=3)
    driver.submit([3] * 20, n=2, max_tokens=4, ignore_eos=True)
    second = driver.submit([4] * 20, n=2, max_tokens=4)
    schedule = driver.step()
    assert schedule is not None
    assert schedule.waiting_for == "seats: needs 2, 1 free"
    driver.run()
    driver.assert_right(second)


def test_one_sibling_may_end_long_before_the_others() -> None:
    driver = Driver()
    lead = driver.submit([3] * 40, n=3, max_tokens=30, ignore_eos=True)
    driver.steps_until(lead, 3)
    driver.scheduler.finish(lead, "stop", "word")
    driver.run()
    driver.assert_right(*lead.siblings)
    driver.assert_idle()
