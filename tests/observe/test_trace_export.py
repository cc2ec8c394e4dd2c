"""The Chrome trace: valid by the format's rules, and true to the run."""

from __future__ import annotations

import dataclasses
import itertools
import json
from collections import defaultdict
from typing import Any

from cudaprefill.observe.events import RequestEvent
from cudaprefill.observe.trace import Trace, TraceHeader
from cudaprefill.observe.trace_export import ENGINE, REQUESTS, chrome_trace
from tests.observe.fake_run import FakeRun


def exported(run: FakeRun) -> list[dict[str, Any]]:
    header = TraceHeader("1.0", {"model": "fake"}, dataclasses.asdict(run.driver.config), time=0.0, unix_time=0.0)
    document = json.loads(json.dumps(chrome_trace(Trace(header, run.events, 0, 0)), allow_nan=False))
    assert document["displayTimeUnit"] == "ms"
    return list(document["traceEvents"])


def busy_run() -> FakeRun:
    run = FakeRun(
        lambda work: 0.01 * (work.decodes + work.chunk_tokens),
        delivering=0.001,
        gap=0.002,
        num_blocks=11,
        max_num_batched_tokens=64,
        max_num_seqs=4,
    )
    for number in range(8):
        run.submit([number] * (5 + 17 * number % 80), max_tokens=30 + number, request_id=f"request {number}")
        run.step()
    run.driver.scheduler.abort("request 6")
    run.run()
    run.submit([3] * 40, max_tokens=9, request_id="unfinished")
    run.step()
    return run


def test_every_event_has_what_its_phase_demands() -> None:
    events = exported(busy_run())
    assert {event["ph"] for event in events} == {"X", "i", "C", "M"}
    for event in events:
        assert isinstance(event["name"], str)
        assert isinstance(event["pid"], int)
        if event["ph"] != "M":
            assert event["ts"] >= 0
        if event["ph"] == "X":
            assert event["dur"] >= 0
            assert isinstance(event["tid"], int)
        if event["ph"] == "i":
            assert event["s"] in ("t", "p", "g")
        if event["ph"] == "C":
            assert all(isinstance(value, int) and value >= 0 for value in event["args"].values())
        if event["ph"] == "M":
            assert event["name"] in ("process_name", "thread_name", "thread_sort_index")


def test_slices_of_one_track_do_not_overlap() -> None:
    tracks: dict[tuple[int, int], list[tuple[float, float]]] = defaultdict(list)
    for event in exported(busy_run()):
        if event["ph"] == "X":
            tracks[event["pid"], event["tid"]].append((event["ts"], event["ts"] + event["dur"]))
    assert len(tracks) == 1 + 9
    for slices in tracks.values():
        slices.sort()
        assert all(end <= start + 0.2 for (_, end), (start, _) in itertools.pairwise(slices))


def test_a_request_shows_its_queueing_chunks_and_decoding() -> None:
    run = FakeRun(max_num_batched_tokens=16, max_num_seqs=1)
    run.submit([2] * 16, max_tokens=2, request_id="first")
    run.submit([3] * 24, max_tokens=3, request_id="second")
    run.run()
    events = exported(run)
    (track,) = [event["tid"] for event in events if event["ph"] == "M" and event["args"].get("name") == "second"]
    own = [event for event in events if event["pid"] == REQUESTS and event.get("tid") == track and event["ph"] == "X"]
    assert [(event["name"], event["ts"] / 1e6, event["dur"] / 1e6) for event in own] == [
        ("queued", 0, 2),
        ("chunk 0..15", 2, 1),
        ("chunk 16..23", 3, 1),
        ("decode", 4, 2),
    ]
    (end,) = [event for event in events if event["ph"] == "i" and event["tid"] == track]
    assert (end["name"], end["args"]) == ("length", {"output_tokens": 3})


def test_the_engine_shows_its_steps_and_counters() -> None:
    run = busy_run()
    steps = [event for event in run.events if not isinstance(event, RequestEvent)]
    events = exported(run)
    slices = [event for event in events if event["pid"] == ENGINE and event["ph"] == "X"]
    assert [event["args"]["step"] for event in slices] == [step.number for step in steps]
    blocks = [event["args"] for event in events if event["ph"] == "C" and event["name"] == "blocks"]
    assert all(sum(counter.values()) == 11 for counter in blocks)
    budget = [event["args"] for event in events if event["ph"] == "C" and event["name"] == "budget"]
    assert [counter["decodes"] + counter["chunks"] for counter in budget] == [step.num_tokens for step in steps]
