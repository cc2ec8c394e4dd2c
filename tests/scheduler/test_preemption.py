"""What happens when running requests outgrow the pool."""

from __future__ import annotations

from tests.scheduler.driver import Driver


def test_the_newest_request_makes_room_and_its_output_is_undisturbed() -> None:
    driver = Driver(num_blocks=8)
    old, new = (driver.submit([10 + index] * 40, max_tokens=60, ignore_eos=True) for index in range(2))
    driver.run()
    assert old.num_preemptions == 0
    assert new.num_preemptions > 0
    driver.assert_right()
    driver.assert_idle()


def test_a_preempted_request_keeps_its_place_before_later_arrivals() -> None:
    driver = Driver(num_blocks=8)
    old, new = (driver.submit([10 + index] * 40, max_tokens=60, ignore_eos=True) for index in range(2))
    while new.num_preemptions == 0:
        schedule = driver.step()
        assert schedule is not None
    assert schedule.preempted == [new]
    later = driver.submit([12] * 5, arrival_time=1.0, max_tokens=1)
    driver.run()
    order = [request for schedule in driver.schedules for request in schedule.finished]
    assert order.index(old) < order.index(later)
    first_later = next(s.number for s in driver.schedules for c in s.chunks if c.request is later)
    first_new = next(
        s.number for s in driver.schedules for c in s.chunks if c.request is new and s.number > schedule.number
    )
    assert first_new <= first_later
    driver.assert_right()


def test_decodes_go_on_while_others_are_preempted() -> None:
    driver = Driver(num_blocks=12, max_num_seqs=6)
    for index in range(6):
        driver.submit([10 + index] * 30, max_tokens=100, ignore_eos=True)
    driver.run()
    oldest = driver.requests["request-0"]
    assert oldest.num_preemptions == 0
    # One token in each step from the first to the last.
    assert len(oldest.output_token_ids) == 100
    assert driver.schedules[99].finished == [oldest]
    driver.assert_right()


def test_a_low_priority_request_is_preempted_before_a_newer_urgent_one() -> None:
    driver = Driver(num_blocks=8)
    background = driver.submit([10] * 40, priority=5, max_tokens=60, ignore_eos=True)
    urgent = driver.submit([11] * 40, priority=0, max_tokens=60, ignore_eos=True, arrival_time=1.0)
    driver.run()
    assert urgent.num_preemptions == 0
    assert background.num_preemptions > 0
    driver.assert_right()


def test_a_prefill_in_the_middle_can_be_preempted_and_starts_from_what_is_cached() -> None:
    driver = Driver(num_blocks=10, max_num_batched_tokens=33)
    old = driver.submit([10] * 32, max_tokens=70, ignore_eos=True)
    driver.steps_until(old, 1)
    new = driver.submit(list(range(200, 300)), arrival_time=1.0, max_tokens=5)
    driver.run()
    driver.assert_right(old, new)
    driver.assert_idle()


def test_a_decode_takes_its_block_from_a_newer_prefill() -> None:
    driver = Driver(num_blocks=7, max_num_seqs=2, max_num_batched_tokens=2)
    old = driver.submit([10] * 16, max_tokens=80, ignore_eos=True)
    driver.steps_until(old)
    new = driver.submit([11] * 64, arrival_time=1.0, max_tokens=2)
    while not driver.schedules[-1].preempted:
        assert driver.step() is not None
    assert driver.schedules[-1].preempted == [new]
    assert new.num_output_tokens == 0
    driver.run()
    assert old.num_preemptions == 0
    driver.assert_right()


def test_a_decode_does_not_take_blocks_from_an_older_prefill() -> None:
    driver = Driver(num_blocks=10, max_num_seqs=2, max_num_batched_tokens=4, long_prefill_token_threshold=1)
    old = driver.submit([10] * 128, max_tokens=2)
    new = driver.submit([11] * 5, arrival_time=1.0, max_tokens=60, ignore_eos=True)
    while not driver.schedules or not driver.schedules[-1].preempted:
        assert driver.step() is not None
    assert driver.schedules[-1].preempted == [new]
    assert old.num_output_tokens == 0
    driver.run()
    assert old.num_preemptions == 0
    driver.assert_right()


def test_siblings_are_preempted_one_by_one_and_each_finishes_as_if_alone() -> None:
    driver = Driver(num_blocks=7)
    lead = driver.submit([10] * 40, n=4, max_tokens=60, ignore_eos=True)
    driver.run()
    assert lead.num_preemptions == 0
    assert sum(sibling.num_preemptions for sibling in lead.siblings) > 0
    driver.assert_right()
    driver.assert_idle()


def test_a_preempted_stream_finds_its_own_blocks_again() -> None:
    driver = Driver(num_blocks=8)
    driver.submit([10] * 40, max_tokens=30, ignore_eos=True)
    new = driver.submit([11] * 60, max_tokens=30, ignore_eos=True)
    while new.num_preemptions == 0:
        assert driver.step() is not None
    while not any(chunk.request is new for chunk in driver.schedules[-1].chunks):
        assert driver.step() is not None
    chunk = next(chunk for chunk in driver.schedules[-1].chunks if chunk.request is new)
    assert chunk.hit_tokens > 0
    assert new.num_hit_tokens == 0  # of the prompt, when it came
    driver.run()
    driver.assert_right()
