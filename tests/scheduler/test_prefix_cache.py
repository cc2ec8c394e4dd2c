"""What two prompts may share, and what they must not."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.scheduler.driver import BLOCK_SIZE, Driver, Virtual


@pytest.mark.parametrize("constant_hash", [False, True])
def test_a_hit_compares_tokens_and_parents_and_not_only_hashes(constant_hash: bool) -> None:
    driver = Driver(constant_hash=constant_hash)
    first = driver.submit([5] * 33, max_tokens=4)
    driver.run()
    second = driver.submit([9] * 33, max_tokens=4)
    driver.run()
    assert second.num_hit_tokens == 0
    driver.assert_right(first, second)


@settings(deadline=None, max_examples=50)
@given(st.lists(st.lists(st.sampled_from([2, 3]), min_size=1, max_size=14), min_size=2, max_size=8))
def test_with_one_hash_for_all_blocks_every_output_is_still_right(prompts: list[list[int]]) -> None:
    driver = Driver(block_size=2, num_blocks=40, constant_hash=True)
    for prompt in prompts:
        driver.submit(prompt, max_tokens=5)
        driver.run()
    driver.assert_right()


def test_equal_blocks_behind_different_prefixes_are_not_shared() -> None:
    driver = Driver(constant_hash=True)
    driver.submit([5] * 16 + [7] * 16 + [1], max_tokens=1)
    driver.run()
    second = driver.submit([6] * 16 + [7] * 16 + [1], max_tokens=1)
    driver.run()
    assert second.num_hit_tokens == 0
    driver.assert_right()


def test_no_hit_across_salts_adapters_and_plain_prompts() -> None:
    keys = [(("cache_salt", b"x"),), (("cache_salt", b"y"),), (), (("adapter", b"x"),)]
    driver = Driver()
    for extra_keys in keys:
        request = driver.submit([3] * 48, extra_keys=extra_keys, max_tokens=1)
        driver.run()
        assert request.num_hit_tokens == 0
    for extra_keys in keys:
        request = driver.submit([3] * 48, extra_keys=extra_keys, max_tokens=1)
        driver.run()
        assert request.num_hit_tokens == 32
    driver.assert_right()


@pytest.mark.parametrize("constant_hash", [False, True])
@pytest.mark.parametrize("tuned", [Virtual(embedded=64), Virtual(given=64), Virtual(given=40, embedded=24)])
def test_the_virtual_tokens_of_an_adapter_are_found_by_its_requests_alone(tuned: Virtual, constant_hash: bool) -> None:
    driver = Driver(constant_hash=constant_hash)
    other = dataclasses.replace(tuned, content=1)
    hits = []
    for text, virtual in ((5, tuned), (6, tuned), (5, other), (5, None), (6, other)):
        request = driver.submit([text] * 20, virtual=virtual, max_tokens=4)
        driver.run()
        hits.append(request.num_hit_tokens)
    assert hits == [0, 64, 0, 0, 64]
    driver.assert_right()
    driver.assert_idle()


def test_virtual_tokens_that_end_within_a_block_share_it_with_texts_that_go_on_alike() -> None:
    driver = Driver()
    hits = []
    for text in ([5] * 30, [6] * 30, [5] * 12 + [7] * 30):
        request = driver.submit(text, virtual=Virtual(given=20), max_tokens=4)
        driver.run()
        hits.append(request.num_hit_tokens)
    assert hits == [0, 16, 32]
    driver.assert_right()


def test_given_keys_and_values_are_written_where_they_were_not_found_and_cost_no_budget() -> None:
    driver = Driver(max_num_batched_tokens=32)
    first = driver.submit([5] * 32, virtual=Virtual(given=40), max_tokens=1)
    driver.step()
    assert first.finished
    (given,) = driver.schedules[-1].given
    assert (given.start, len(given.slots)) == (0, 40)
    driver.submit([6] * 32, virtual=Virtual(given=40), max_tokens=1)
    driver.step()
    (given,) = driver.schedules[-1].given
    assert (given.start, len(given.slots)) == (32, 8)  # two blocks were found, the third goes on otherwise
    driver.assert_right()


@pytest.mark.parametrize("length", [15, 16, 17, 31, 32, 33])
def test_the_same_prompt_three_times_gives_the_same_and_computes_at_least_one_token(length: int) -> None:
    driver = Driver()
    for _ in range(3):
        request = driver.submit(list(range(100, 100 + length)), max_tokens=20)
        driver.run()
    assert request.num_hit_tokens == (length - 1) // BLOCK_SIZE * BLOCK_SIZE
    driver.assert_right()
    driver.assert_idle()


def test_a_prompt_holds_its_cached_prefix_before_it_takes_new_blocks() -> None:
    driver = Driver(num_blocks=4)
    prefix = list(range(100, 132))
    driver.submit([*prefix, 7], max_tokens=1)
    driver.run()
    assert driver.pool.num_cached == 2
    # The prefix is at the eviction end: everything else was used after it.
    others = [driver.pool.allocate() for _ in range(2)]
    driver.pool.free([block for block in others if block is not None])
    request = driver.submit([*prefix, *range(200, 232)], max_tokens=1)
    driver.run()
    assert request.num_hit_tokens == 32
    assert len(set(driver.batches[-1].block_table[0].tolist())) == 4
    driver.assert_right()


def test_a_prompt_that_needs_more_than_the_pool_is_refused_even_with_a_cached_prefix() -> None:
    driver = Driver(num_blocks=3)
    prefix = list(range(100, 132))
    driver.submit([*prefix, 7], max_tokens=1)
    driver.run()
    with pytest.raises(ValueError, match=r"64 tokens, but the KV cache holds 48 \(3 blocks of 16\)"):
        driver.submit([*prefix, *range(200, 232)], max_tokens=1)


def test_two_requests_that_compute_one_prompt_side_by_side_end_up_with_one_copy() -> None:
    driver = Driver()
    first, second = (driver.submit([4] * 64, max_tokens=40, ignore_eos=True) for _ in range(2))
    driver.step()
    tables = [driver.scheduler.table.block_table(request.row) for request in (first, second)]
    assert tables[0] == tables[1]
    assert driver.pool.num_used == 4
    driver.run()
    driver.assert_right()
    driver.assert_idle()


def test_output_is_cached_too() -> None:
    driver = Driver()
    first = driver.submit([4] * 20, max_tokens=30, ignore_eos=True)
    driver.run()
    follow_up = [4] * 20 + first.output_token_ids + [8] * 5
    second = driver.submit(follow_up, max_tokens=3)
    driver.run()
    # The last token of the first output was never computed: 49 tokens have KV.
    assert second.num_hit_tokens == 48
    driver.assert_right()


def test_tails_are_evicted_before_heads() -> None:
    driver = Driver(num_blocks=6)
    prompt = list(range(100, 165))
    driver.submit(prompt, max_tokens=1)
    driver.run()
    assert driver.pool.num_cached == 4
    driver.submit(list(range(300, 348)), max_tokens=1)
    driver.run()
    again = driver.submit(prompt, max_tokens=1)
    driver.run()
    assert again.num_hit_tokens == 48
    driver.assert_right()


def test_without_prefix_caching_nothing_is_shared_or_kept() -> None:
    driver = Driver(enable_prefix_caching=False)
    for _ in range(2):
        request = driver.submit([4] * 64, max_tokens=4)
        driver.run()
        assert request.num_hit_tokens == 0
        assert driver.pool.num_cached == 0
    driver.assert_right()


def test_after_a_reset_nothing_computed_before_it_is_found_not_even_from_running_requests() -> None:
    driver = Driver()
    running = driver.submit([4] * 40, max_tokens=60, ignore_eos=True)
    driver.steps_until(running, 3)
    driver.scheduler.reset_prefix_cache()
    driver.check()
    driver.steps_until(running, 40)
    late = driver.submit([4] * 40, max_tokens=60, ignore_eos=True)
    driver.step()
    assert late.num_hit_tokens == 0
    driver.run()
    driver.assert_right()
    last = driver.submit([4] * 40, max_tokens=1)
    driver.run()
    assert last.num_hit_tokens == 32


def test_a_reset_while_a_step_is_in_flight_keeps_the_steps_blocks_out() -> None:
    driver = Driver()
    driver.submit([4] * 40, max_tokens=1)
    schedule = driver.scheduler.schedule()
    assert schedule is not None
    driver.scheduler.reset_prefix_cache()
    driver.finish_step(schedule)
    assert driver.pool.num_cached == 0
    driver.assert_right()
