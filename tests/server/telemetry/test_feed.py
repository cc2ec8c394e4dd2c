"""What telemetry says against the scheduler that it tells of, without sockets."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cudaprefill.protocol.codec import encode
from cudaprefill.protocol.telemetry import EngineSettings, PoolTotals, TelemetrySnapshot, TelemetryUpdate
from cudaprefill.server.telemetry.feed import EnginePull, Wish
from tests.scheduler.driver import Virtual
from tests.server.telemetry.history import History, Reader

MIB = 2**20
BLOCKS = Wish(frozenset({"blocks"}))


def test_a_subscriber_gets_a_snapshot_and_then_what_changed() -> None:
    history = History(num_blocks=8, block_size=4)
    history.driver.submit(list(range(5)), request_id="lead", max_tokens=3, ignore_eos=True)
    history.step()
    history.pull()
    reader = Reader(history.feed)
    snapshot = reader.read()
    assert isinstance(snapshot, TelemetrySnapshot)
    assert (snapshot.reason, snapshot.step) == ("subscribed", 1)
    assert sorted(snapshot.blocks or "") == sorted("aa......")
    assert [record.id for record in snapshot.requests or ()] == ["lead"]
    history.step()
    history.pull()
    update = reader.read()
    assert isinstance(update, TelemetryUpdate)
    assert [(step.number, step.num_decodes, step.joined) for step in update.steps or ()] == [(2, 1, [1])]
    assert update.blocks is None  # the second token has a slot already
    history.assert_known_to(reader.view)
    history.step()
    history.pull()
    update = reader.read()
    assert isinstance(update, TelemetryUpdate)
    assert [(change.kind, change.reason, change.output_tokens) for change in update.requests or ()] == [
        ("finished", "length", 3)
    ]
    assert sorted(state for _, state in update.blocks or ()) == [".", "c"]
    assert update.owners == {"1": (0, [])}
    history.assert_known_to(reader.view)


def test_without_news_there_is_no_update() -> None:
    history = History()
    reader = Reader(history.feed)
    assert reader.read() is not None
    history.pull()  # finds nothing
    assert reader.read() is None
    history.driver.submit([1, 2, 3], max_tokens=1)
    history.deliver()
    assert reader.read() is not None
    assert reader.read() is None


def test_settings_are_told_once_to_each() -> None:
    history = History()
    readers = [Reader(history.feed), Reader(history.feed, BLOCKS)]
    for reader in readers:
        reader.read()
    changed = EngineSettings(max_num_batched_tokens=99, long_prefill_token_threshold=7, itl_target_ms=5.0)
    history.feed.change_settings(changed)
    for reader in readers:
        update = reader.read()
        assert isinstance(update, TelemetryUpdate)
        assert update.settings == changed
        assert reader.read() is None


@pytest.mark.parametrize("topic", ["step", "request", "blocks"])
def test_a_subscriber_hears_of_nothing_but_its_topics(topic: Any) -> None:
    history = History(num_blocks=16, block_size=4)
    reader = Reader(history.feed, Wish(frozenset({topic})))
    snapshot = reader.read()
    assert isinstance(snapshot, TelemetrySnapshot)
    assert (snapshot.requests is not None, snapshot.blocks is not None) == (topic == "request", topic == "blocks")
    assert snapshot.owners is None
    history.driver.submit(list(range(9)), max_tokens=2)
    history.run()
    history.pull()
    update = reader.read()
    assert isinstance(update, TelemetryUpdate)
    told = {
        "step": update.steps is not None,
        "request": update.requests is not None,
        "blocks": update.blocks is not None and update.pool is not None,
    }
    assert told == {name: name == topic for name in told}
    assert update.owners is None


def test_an_evicted_block_is_marked_whatever_it_is_now() -> None:
    history = History(num_blocks=4, block_size=4)
    driver = history.driver
    driver.submit(list(range(16)), max_tokens=1)
    history.run()
    history.pull()
    reader = Reader(history.feed)
    reader.read()
    assert driver.pool.num_cached == 4
    driver.submit(list(range(20, 28)), max_tokens=1)  # takes two of them, which end up cached again
    history.run()
    history.pull()
    update = reader.read()
    assert isinstance(update, TelemetryUpdate)
    assert [state for _, state in update.blocks or ()] == ["xc", "xc"]


# --- Slow readers ---


def test_a_slow_reader_gets_merged_differences_and_the_count_of_the_steps_it_missed() -> None:
    history = History(max_steps=4, num_blocks=16, block_size=4)
    driver = history.driver
    driver.submit(list(range(6)), max_tokens=20, ignore_eos=True)
    driver.submit(list(range(7)), max_tokens=4, ignore_eos=True)
    history.step()
    reader = Reader(history.feed)
    reader.read()
    for _ in range(9):
        history.step()
    history.pull()
    update = reader.read()
    assert isinstance(update, TelemetryUpdate)
    assert update.dropped_steps == 5
    assert [step.number for step in update.steps or ()] == [7, 8, 9, 10]
    assert (update.steps or [])[0].joined == [1]
    history.assert_known_to(reader.view)
    assert reader.view.dropped_steps == 5


def test_a_reader_too_slow_for_the_changes_of_requests_gets_a_snapshot_that_says_so() -> None:
    history = History(max_request_changes=8, num_blocks=64)
    reader = Reader(history.feed)
    reader.read()
    for number in range(5):
        history.driver.submit([number], max_tokens=3)
        history.run()
    history.pull()
    snapshot = reader.read()
    assert isinstance(snapshot, TelemetrySnapshot)
    assert snapshot.reason == "dropped"
    history.assert_known_to(reader.view)
    reader.view.apply(snapshot)
    history.assert_known_to(reader.view)
    assert reader.read() is None


def test_memory_stays_bounded_however_long_nobody_reads() -> None:
    history = History(max_steps=16, max_request_changes=32, num_blocks=64, block_size=4)
    reader = Reader(history.feed)
    reader.read()
    sizes = []
    for _ in range(3):
        for number in range(40):
            history.driver.submit([number, number], max_tokens=4)
            history.run()
            history.pull()
        other = Reader(history.feed)
        other.read()
        sizes.append(len(history.feed._steps.since(0)) + len(history.feed._changes.since(0)))
    assert sizes == [48, 48, 48]
    reader.read()
    history.assert_known_to(reader.view)


# --- Sizes ---


def test_the_block_map_of_100_000_blocks_fits_into_one_message_and_a_difference_into_a_few_hundred_bytes() -> None:
    history = History(num_blocks=100_000, max_model_len=100_000, max_num_batched_tokens=8192)
    driver = history.driver
    for request in range(8):
        driver.submit(list(range(request, request + 2000)), max_tokens=400, ignore_eos=True)
    while driver.scheduler.num_decoding < 8:
        history.step()
    history.pull()
    reader = Reader(history.feed)
    reader.read()
    assert 100_000 < len(reader.texts[0]) < 200_000 < MIB
    for _ in range(32):  # each request takes a block every 16 steps
        history.step()
        history.pull()
        reader.read()
    history.assert_known_to(reader.view)
    sizes = [len(text) for text in reader.texts[2:]]
    print(f"snapshot {len(reader.texts[0]):,} bytes, updates {min(sizes)} to {max(sizes)} bytes")
    assert max(sizes) < 1000
    assert sum(sizes) / len(sizes) < 600


def test_more_changes_than_the_whole_map_has_bytes_come_as_a_snapshot() -> None:
    history = History(num_blocks=100_000)
    reader = Reader(history.feed, BLOCKS)
    reader.read()
    changes = np.ones((60_000, 4), dtype=np.int32)
    changes[:, 0], changes[:, 3] = np.arange(60_000), 0
    pool = PoolTotals(free=40_000, cached=0, used=60_000, taken=60_000, freed=0, evicted=0, used_tokens=1)
    history.feed.apply(EnginePull(pool, changes))
    snapshot = reader.read()
    assert isinstance(snapshot, TelemetrySnapshot)
    assert snapshot.reason == "condensed"
    assert snapshot.blocks == "a" * 60_000 + "." * 40_000
    assert len(encode(snapshot)) < MIB


# --- Any history ---

VIRTUAL = [None, None, None, Virtual(given=6), Virtual(embedded=7), Virtual(given=3, embedded=6)]
prompts = st.integers(1, 40).flatmap(lambda length: st.integers(0, 2).map(lambda seed: [seed] * length))
actions = st.one_of(
    st.tuples(st.just("submit"), prompts, st.integers(1, 12), st.integers(1, 3), st.sampled_from(VIRTUAL)),
    st.tuples(st.just("step"), st.integers(1, 12)),
    st.tuples(st.just("abort"), st.integers(0, 20)),
    st.tuples(st.just("reset")),
    st.tuples(st.just("pull")),
    st.tuples(st.just("read"), st.integers(0, 2)),
)


def play(history: History, readers: list[Reader], script: list[tuple[Any, ...]]) -> Iterator[None]:
    driver = history.driver
    for action, *arguments in script:
        if action == "submit":
            prompt, max_tokens, n, virtual = arguments
            options = {"virtual": virtual, "adapter": "tuned" if virtual else None, "salt": len(driver.requests)}
            driver.submit(prompt, max_tokens=max_tokens, n=n, ignore_eos=True, **options)
        elif action == "step":
            for _ in range(arguments[0]):
                history.step()
        elif action == "abort" and driver.requests:
            driver.scheduler.abort(list(driver.requests)[arguments[0] % len(driver.requests)])
        elif action == "reset":
            driver.scheduler.reset_prefix_cache()
        elif action == "pull":
            history.pull()
        elif action == "read":
            readers[arguments[0]].read()
        history.deliver()
        yield


@settings(max_examples=150, deadline=None)
@given(st.lists(actions, max_size=40), st.sampled_from([(1024, 4096), (3, 12)]), st.sampled_from([14, 64]))
def test_snapshot_and_updates_are_the_truth_of_the_engine(
    script: list[tuple[Any, ...]], rings: tuple[int, int], num_blocks: int
) -> None:
    """For any history, any pattern of ticks, and rings so small that every reader is too slow at times."""
    history = History(
        max_steps=rings[0],
        max_request_changes=rings[1],
        num_blocks=num_blocks,
        block_size=4,
        max_num_batched_tokens=16,
        max_num_seqs=6,
    )
    readers = [Reader(history.feed), Reader(history.feed), Reader(history.feed)]
    for _ in play(history, readers, script):
        pass
    history.pull()
    for reader in readers:
        reader.read()
        history.assert_known_to(reader.view)
        assert reader.read() is None
    history.run()
    history.pull()
    for reader in readers:
        reader.read()
        history.assert_known_to(reader.view)
