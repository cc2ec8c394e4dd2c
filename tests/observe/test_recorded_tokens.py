"""What events say of tokens and evicted prefixes, once somebody wants to know."""

from __future__ import annotations

from cudaprefill.observe.events import RequestEventKind
from tests.scheduler.driver import Driver

PROMPT = list(range(2, 42))  # two full blocks and a half


def test_arrival_and_end_name_the_tokens_and_their_hashes() -> None:
    driver = Driver()
    driver.scheduler.record_prefixes(True)
    request = driver.submit(PROMPT, max_tokens=10, ignore_eos=True)
    again = driver.submit([*PROMPT[:32], 7], max_tokens=1)
    driver.run()
    recorded = {(event.request_id, event.kind): event.tokens for event in driver.events if event.tokens is not None}
    assert {kind for _, kind in recorded} == {RequestEventKind.ARRIVED, RequestEventKind.FINISHED}
    arrived = recorded[request.request_id, RequestEventKind.ARRIVED]
    finished = recorded[request.request_id, RequestEventKind.FINISHED]
    other = recorded[again.request_id, RequestEventKind.ARRIVED]
    assert (arrived.prompt_token_ids, arrived.output_token_ids) == (PROMPT, [])
    assert finished.output_token_ids == driver.tokens[request.request_id]
    assert (len(arrived.block_hashes), len(finished.block_hashes)) == (2, 3)
    assert list(finished.block_hashes[:2]) == list(arrived.block_hashes) == list(other.block_hashes)


def test_a_step_names_the_prefixes_that_gave_way() -> None:
    driver = Driver(num_blocks=4)
    driver.scheduler.record_prefixes(True)
    driver.submit(PROMPT, max_tokens=1)
    driver.run()
    hashes = driver.events[0].tokens.block_hashes
    driver.submit(list(range(100, 164)), max_tokens=1)
    driver.run()
    first, second = driver.schedules
    assert list(first.evicted_hashes) == []
    assert list(second.evicted_hashes) == list(hashes[::-1])  # tails before heads


def test_nothing_is_told_of_tokens_that_nobody_records() -> None:
    driver = Driver()
    driver.submit(PROMPT, max_tokens=2, n=2)
    driver.run()
    assert all(event.tokens is None for event in driver.events)
    assert driver.schedules[0].evicted_hashes is None


def test_siblings_have_tokens_of_their_own_from_the_fork_on() -> None:
    driver = Driver()
    driver.scheduler.record_prefixes(True)
    request = driver.submit(PROMPT, max_tokens=3, n=2, ignore_eos=True)
    driver.run()
    (sibling,) = request.siblings
    told = [(event.kind, event.tokens) for event in driver.events if event.request_id == sibling.request_id]
    assert told[0] == (RequestEventKind.ARRIVED, None)
    assert told[-1][1].output_token_ids == driver.tokens[sibling.request_id]
