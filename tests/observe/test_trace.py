"""What is recorded is what is read, whatever the disk does in between."""

from __future__ import annotations

import dataclasses
import errno
import functools
import json
import threading
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cudaprefill.observe.events import RequestEvent, RequestEventKind, RequestTokens, StepEvent
from cudaprefill.observe.trace import Event, Trace, TraceHeader, TraceWriter, part_of, read_trace
from cudaprefill.observe.trace_lines import LineDecoder, LineEncoder, dump_line
from tests.scheduler.driver import Driver

HEADER = TraceHeader("1.0", {"model": "fake"}, {"block_size": 16}, time=1000.0, unix_time=1.7e9)


@functools.cache
def run_of_requests(seed: int, num_requests: int, num_blocks: int = 11) -> list[Event]:
    """Events of a run with queueing, chunks, hits, preemptions, siblings and an abort, in order."""
    driver = Driver(num_blocks=num_blocks, max_num_batched_tokens=64, max_num_seqs=4)
    driver.clock = HEADER.time
    driver.scheduler.record_prefixes(True)
    for number in range(num_requests):
        length = 5 + (seed + number * 37) % 90
        prompt = [number % 2] * (length // 2) + [2 + (seed + number) % 5] * (length - length // 2)
        driver.submit(
            prompt,
            request_id=f"request {number}",
            arrival_time=driver.clock,
            max_tokens=20 + (seed * 7 + number * 11) % 40,
            ignore_eos=True,
            n=1 + (number % 3 == 2),
            salt=number * 10,
        )
    while driver.scheduler.has_work():
        start = driver.clock
        schedule = driver.scheduler.schedule()
        if schedule.number == 3:
            driver.scheduler.abort("request 0")
        driver.clock += 0.25
        driver.finish_step(schedule)
        driver.events.append(driver.scheduler.step_event(schedule, start, 0.25))
    return driver.events


def comparable(event: Event) -> Any:
    """Without what a trace leaves out: token ids, the order of the decodes, fractions of a microsecond."""
    values = {field.name: getattr(event, field.name) for field in dataclasses.fields(event)}
    if isinstance(event, StepEvent):
        values["decode_ids"], values["decode_numbers"] = set(event.decode_ids), set(event.decode_numbers)
        values["evicted_hashes"] = list(event.evicted_hashes)
        if event.predicted_duration is not None:
            values["predicted_duration"] = round(event.predicted_duration, 6)
    elif event.tokens is not None:
        values["tokens"] = list(event.tokens.block_hashes)
    return values


def comparables(events: list[Event]) -> list[Any]:
    return [comparable(event) for event in events]


def recorded(path: Path, events: list[Event], **options: Any) -> Trace:
    writer = TraceWriter(path, HEADER, **options)
    for event in events:
        writer.record(event)
    writer.close()
    assert writer.error is None
    return read_trace(path)


def test_the_run_used_here_has_everything_in_it() -> None:
    events = run_of_requests(seed=1, num_requests=12)
    kinds = {event.kind for event in events if isinstance(event, RequestEvent)}
    steps = [event for event in events if isinstance(event, StepEvent)]
    assert kinds == set(RequestEventKind)
    assert any(step.waiting_for for step in steps)
    assert any(chunk.hit_tokens for step in steps for chunk in step.chunks)
    assert any(len(step.evicted_hashes) for step in steps)


@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 1000), num_requests=st.integers(1, 12), cut=st.integers(0, 10**6))
def test_lines_give_the_events_back_also_when_files_change_in_between(seed: int, num_requests: int, cut: int) -> None:
    events = run_of_requests(seed, num_requests)
    encoder, decoder = LineEncoder(HEADER.time), LineDecoder()
    decoder.restart(HEADER.time)
    told: list[Event] = []
    for number, event in enumerate(events):
        lines = []
        if number == cut % len(events):
            decoder.restart(HEADER.time)
            lines = encoder.restart()
        for line in [*lines, *encoder.encode(event)]:
            told += decoder.decode(json.loads(dump_line(line)))
    assert comparables(told) == comparables(events)


def test_a_file_gives_the_run_back(tmp_path: Path) -> None:
    events = run_of_requests(seed=1, num_requests=12)
    trace = recorded(tmp_path / "trace", events)
    assert comparables(trace.events) == comparables(events)
    assert trace.header == HEADER
    assert (trace.num_dropped, trace.num_unreadable) == (0, 0)


def test_a_full_part_is_pushed_on_and_the_parts_make_one_run(tmp_path: Path) -> None:
    events = run_of_requests(seed=1, num_requests=12)
    path = tmp_path / "trace"
    trace = recorded(path, events, max_bytes=4000, max_files=100)
    assert part_of(path, 2).exists()
    assert path.stat().st_size < 5000
    assert comparables(trace.events) == comparables(events)


def test_when_the_oldest_parts_are_gone_the_rest_can_be_read(tmp_path: Path) -> None:
    events = run_of_requests(seed=1, num_requests=12)
    path = tmp_path / "trace"
    trace = recorded(path, events, max_bytes=3000, max_files=3)
    assert sorted(file.name for file in tmp_path.iterdir()) == ["trace", "trace.1", "trace.2"]
    assert trace.num_unreadable == 0
    assert (
        comparables(trace.steps)
        == comparables([event for event in events if isinstance(event, StepEvent)])[-len(trace.steps) :]
    )
    arrived = {event.request_id for event in trace.request_events if event.kind is RequestEventKind.ARRIVED}
    assert {event.request_id for event in trace.request_events} == arrived  # those under way are told anew


def test_one_part_may_be_all_there_is(tmp_path: Path) -> None:
    recorded(tmp_path / "trace", run_of_requests(seed=1, num_requests=12), max_bytes=3000, max_files=1)
    assert [file.name for file in tmp_path.iterdir()] == ["trace"]


def test_another_run_does_not_mix_with_the_one_before(tmp_path: Path) -> None:
    path = tmp_path / "trace"
    recorded(path, run_of_requests(seed=1, num_requests=3))
    events = run_of_requests(seed=2, num_requests=2)
    writer = TraceWriter(path, dataclasses.replace(HEADER, run="another"))
    for event in events:
        writer.record(event)
    writer.close()
    assert comparables(read_trace(path).events) == comparables(events)
    assert part_of(path, 1).exists()


def test_a_file_cut_off_anywhere_gives_all_its_whole_lines(tmp_path: Path) -> None:
    events = run_of_requests(seed=1, num_requests=4)
    path = tmp_path / "trace"
    recorded(path, events)
    whole = path.read_bytes()
    for end in range(len(whole) - 60, len(whole)):
        path.write_bytes(whole[:end])
        trace = read_trace(path)
        assert comparables(trace.events) == comparables(events[: len(trace.events)])
        assert len(trace.events) >= len(events) - 3


class Disk:
    """A file on a disk that takes `room` bytes more."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("ab", buffering=0)
        self.room = 10**9

    def write(self, data: bytes) -> int:
        if self.room == 0:
            raise OSError(errno.ENOSPC, "No space left on device")
        data = data[: self.room]
        self.room -= len(data)
        return self._file.write(data)

    def close(self) -> None:
        self._file.close()


@settings(max_examples=20, deadline=None)
@given(room=st.integers(0, 4000), resume=st.integers(1, 100))
def test_a_full_disk_costs_events_that_are_counted_and_nothing_else(
    tmp_path_factory: pytest.TempPathFactory, room: int, resume: int
) -> None:
    events = run_of_requests(seed=1, num_requests=6)
    path = tmp_path_factory.mktemp("full") / "trace"
    disks: list[Disk] = []

    def open_file(path: Path) -> Any:
        disks.append(Disk(path))
        return disks[-1]

    writer = TraceWriter(path, HEADER, open_file=open_file, flush_seconds=1000)
    disks[0].room = room
    for number, event in enumerate(events):
        writer.record(event)
        if number == resume:
            writer._flush()
            disks[0].room = 10**9
    writer.close()
    trace = read_trace(path)
    # The arrival of a request that is still there is told again, so it may count as dropped and be there all the same.
    assert len(events) - writer.num_dropped <= len(trace.events) <= len(events)
    assert trace.num_dropped == writer.num_dropped
    assert (writer.error is None) == (writer.num_dropped == 0)
    known = comparables(events)
    assert all(comparable(event) in known for event in trace.events)


def test_a_file_that_cannot_be_opened_or_written_is_an_error_at_once(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="nowhere"):
        TraceWriter(tmp_path / "nowhere" / "trace", HEADER)

    def full(path: Path) -> Any:
        disk = Disk(path)
        disk.room = 0
        return disk

    with pytest.raises(OSError, match="No space left"):
        TraceWriter(tmp_path / "trace", HEADER, open_file=full)


def test_what_was_recorded_before_a_drain_is_in_the_file_after_it(tmp_path: Path) -> None:
    writer = TraceWriter(tmp_path / "trace", HEADER, flush_seconds=1000)
    events = run_of_requests(0, 4)
    for count in (5, 17, len(events)):
        for event in events[len(read_trace(writer.path).events) : count]:
            writer.record(event)
        writer.drain()
        assert len(read_trace(writer.path).events) == count
    writer.close()
    writer.drain()  # nobody is left to wait for


def test_memory_is_bounded_and_what_does_not_fit_is_counted(tmp_path: Path) -> None:
    events = run_of_requests(seed=1, num_requests=6)
    writer = TraceWriter(tmp_path / "trace", HEADER, max_pending=10, flush_seconds=1000)
    for event in events:
        writer.record(event)
    writer.close()
    trace = read_trace(tmp_path / "trace")
    assert comparables(trace.events) == comparables(events[:10])
    assert writer.num_dropped == trace.num_dropped == len(events) - 10


def test_it_is_written_while_the_run_goes_on(tmp_path: Path) -> None:
    path = tmp_path / "trace"
    writer = TraceWriter(path, HEADER, flush_seconds=0.01)
    writer.record(run_of_requests(seed=1, num_requests=1)[0])
    written = threading.Event()
    while not read_trace(path).events:
        written.wait(0.01)
    writer.close()
    writer.close()


@pytest.mark.parametrize(
    ("content", "reason"),
    [(b"", "not JSON"), (b"[1]\n", "no header"), (b'{"cudaprefill_trace": 99}\n', "has format 99")],
)
def test_what_is_no_trace_is_refused_by_name(tmp_path: Path, content: bytes, reason: str) -> None:
    path = tmp_path / "other"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=f"other.*{reason}"):
        read_trace(path)


def test_no_prompt_is_in_it(tmp_path: Path) -> None:
    driver = Driver()
    driver.scheduler.record_prefixes(True)
    driver.submit([7777777] * 40, max_tokens=1)
    driver.run()
    assert isinstance(driver.events[0].tokens, RequestTokens)
    recorded(tmp_path / "trace", list(driver.events))
    assert b"7777777" not in (tmp_path / "trace").read_bytes()


@pytest.mark.parametrize(("virtual", "adapter"), [(64, "tuned"), (5, None), (0, "low rank"), (0, None)])
def test_adapters_and_virtual_tokens_of_an_arrival(virtual: int, adapter: str | None) -> None:
    arrived = RequestEvent(
        RequestEventKind.ARRIVED, "1", 1000.5, 3, number=1, num_prompt_tokens=70, num_virtual_tokens=virtual,
        adapter=adapter,
    )  # fmt: skip
    encoder, decoder = LineEncoder(1000.0), LineDecoder()
    decoder.restart(1000.0)
    (read,) = [event for line in encoder.encode(arrived) for event in decoder.decode(json.loads(dump_line(line)))]
    assert read == arrived
