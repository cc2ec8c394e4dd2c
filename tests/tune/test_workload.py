"""Workloads: made up, read from public formats, and out of recorded traces."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cudaprefill.engine.scheduler_config import SchedulerConfig
from cudaprefill.observe.trace import Trace, TraceHeader
from cudaprefill.tune.public_traces import read_azure, read_mooncake
from cudaprefill.tune.trace_workload import trace_workload
from cudaprefill.tune.workload import Arrival, SyntheticTraffic, Workload
from tests.observe.fake_run import FakeRun


def arrival(names: list[int], prompt: int, output: int = 1, block: int = 4) -> Arrival:
    prefix = np.array(names, dtype=np.uint64)
    return Arrival(
        id="x", time=0.0, num_prompt_tokens=prompt, num_output_tokens=(output,), prefix=prefix, prefix_block=block
    )


@given(st.lists(st.integers(0, 2**64 - 1), max_size=6), st.lists(st.integers(0, 2**64 - 1), max_size=6))
def test_equal_names_are_equal_tokens_and_nothing_else_is(left: list[int], right: list[int]) -> None:
    a = arrival(left, 40).token_ids(1)
    b = arrival(right, 40).token_ids(2)
    shared = next((i for i, (x, y) in enumerate(zip(left, right, strict=False)) if x != y), min(len(left), len(right)))
    assert (a >= 0).all()
    assert np.array_equal(a[: 4 * shared], b[: 4 * shared])
    assert not np.array_equal(a[: 4 * shared + 4], b[: 4 * shared + 4])


def test_names_beyond_the_request_are_cut_off() -> None:
    assert len(arrival([1, 2, 3], prompt=5, output=2).token_ids(0)) == 7


def test_synthetic_traffic_has_the_rate_and_lengths_that_were_asked_for() -> None:
    traffic = SyntheticTraffic(requests=4000, rate=5.0, prompt=300, output=80, spread=0.5, prefix=64, prefixes=3)
    workload = traffic.make()
    assert len(list(workload)) / workload.duration == pytest.approx(5.0, rel=0.05)
    assert np.mean([one.num_prompt_tokens - 64 for one in workload]) == pytest.approx(300, rel=0.05)
    assert np.mean([one.num_output_tokens for one in workload]) == pytest.approx(80, rel=0.05)
    starts = {one.token_ids(index)[:64].tobytes() for index, one in enumerate(workload.arrivals[:200])}
    assert len(starts) == 3
    assert {one.num_prompt_tokens for one in SyntheticTraffic(spread=0, requests=9, prompt=7).make()} == {7}


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("rat=2", "got 'rat=2'"),
        ("rate=fast", "rate of synthetic traffic must be a number, got 'fast'"),
        ("rate=0", "rate must be positive, got 0"),
        ("requests=0", "requests must be at least 1, got 0"),
        ("spread=nan", "spread must be at least 0, got nan"),
    ],
)
def test_wrong_synthetic_traffic_is_named(text: str, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        SyntheticTraffic.parse(text)
    assert SyntheticTraffic.parse("rate=2,requests=5") == SyntheticTraffic(rate=2.0, requests=5)


def test_azures_csv_gives_times_and_lengths(tmp_path: Path) -> None:
    path = tmp_path / "conv.csv"
    path.write_text(
        "TIMESTAMP,ContextTokens,GeneratedTokens\n"
        "2023-11-16 18:15:46.6805900,374,44\n"
        "2023-11-16 18:15:50.9951690,396,109\n"
        "2024-05-10 00:00:00.009930+00:00,0,5\n"
        "2023-11-16 18:15:47,12,1\n"
    )
    workload = read_azure(path)
    lengths = [(one.num_prompt_tokens, one.num_output_tokens) for one in workload]
    assert lengths == [(374, (44,)), (12, (1,)), (396, (109,))]
    assert [one.time for one in workload] == pytest.approx([0, 0.31941, 4.314579], abs=1e-6)


def test_mooncakes_lines_share_prefixes_by_their_hashes(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    path.write_text(
        '{"timestamp": 500, "input_length": 1100, "output_length": 5, "hash_ids": [0, 1, 2]}\n\n'
        '{"timestamp": 2000, "input_length": 1025, "output_length": 7, "hash_ids": [0, 3, 4]}\n'
    )
    first, second = read_mooncake(path)
    assert (first.time, second.time) == (0.0, 1.5)
    a, b = first.token_ids(0), second.token_ids(1)
    assert (len(a), len(b)) == (1105, 1032)
    assert np.array_equal(a[:512], b[:512])
    assert (a[512:520] != b[512:520]).all()


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        ("a.csv", "x,y\n1,2\n", "lacks the columns ContextTokens, GeneratedTokens, TIMESTAMP"),
        ("a.csv", "TIMESTAMP,ContextTokens,GeneratedTokens\nnow,1,2\n", "line 2: TIMESTAMP must be like .* got 'now'"),
        ("a.csv", "TIMESTAMP,ContextTokens,GeneratedTokens\n", "a.csv has no requests"),
        ("a.jsonl", '{"timestamp": 1}\n', "line 1 is not a request: KeyError"),
        ("a.jsonl", "[]\n", "line 1 is not a request"),
    ],
)
def test_wrong_files_are_named_with_the_line(tmp_path: Path, name: str, content: str, reason: str) -> None:
    path = tmp_path / name
    path.write_text(content)
    with pytest.raises(ValueError, match=reason):
        read_azure(path) if name.endswith("csv") else read_mooncake(path)


def test_a_faster_workload_is_the_same_in_less_time() -> None:
    workload = SyntheticTraffic(requests=10).make()
    assert workload.faster(2.0).duration == workload.duration / 2
    with pytest.raises(ValueError, match="rate factor must be positive, got 0"):
        workload.faster(0)


def recorded(run: FakeRun) -> Workload:
    header = TraceHeader("test", {}, dataclasses.asdict(run.driver.config), time=0.0, unix_time=0.0)
    return trace_workload(Trace(header, run.events, 0, 0), "test")


def test_a_recorded_run_keeps_lengths_times_prefixes_and_ends() -> None:
    run = FakeRun(num_blocks=64)
    run.now = 5.0
    prompt = list(range(2, 42))
    one = run.submit(prompt, received=4.5, tokenized=4.75, max_tokens=30, request_id="one", priority=1)
    run.run()
    run.now += 1.0
    run.submit([*prompt, *one.output_token_ids, 3, 3], request_id="next turn", max_tokens=2)
    run.step()
    run.submit(prompt, received=run.now - 0.75, tokenized=run.now - 0.25, request_id="given up", max_tokens=9)
    run.step()
    run.driver.scheduler.abort("given up")
    run.run()
    workload = recorded(run)
    first, second, third = workload
    assert (first.id, first.time, first.priority) == ("one", 0.0, 1)
    # The engine was idle and took the first two at once; it was at work when the tokens of the third were there.
    assert (first.delay, second.delay, third.delay) == (0.5, 0.0, 0.5)
    assert (first.num_prompt_tokens, first.num_output_tokens) == (40, (30,))
    assert third.num_output_tokens == (1,)
    # The answer is part of the next prompt, so its blocks are shared as well: 70 tokens, four full blocks.
    assert np.array_equal(first.token_ids(0)[:64], second.token_ids(1)[:64])


def test_a_request_that_was_given_up_before_its_first_token_is_given_up_again() -> None:
    run = FakeRun(num_blocks=64, max_num_seqs=1)
    run.submit(list(range(20)), max_tokens=5, request_id="runs")
    run.submit(list(range(20)), max_tokens=5, request_id="waits")
    run.step()
    run.step()
    run.driver.scheduler.abort("waits")
    run.run()
    assert [one.aborted_after for one in recorded(run)] == [None, 2.0]


def test_several_outputs_of_one_prompt_stay_together() -> None:
    run = FakeRun()
    lead = run.driver.request(list(range(20)), request_id="all", max_tokens=3, n=2, ignore_eos=True)
    lead.siblings[0].request_id = "all#1"
    run.driver._salts["all#1"] = 1
    run.driver.add(lead)
    run.run()
    (one,) = recorded(run)
    assert one.num_output_tokens == (3, 3)


def test_an_empty_trace_is_no_workload() -> None:
    config = SchedulerConfig(num_blocks=1, max_model_len=9, max_num_batched_tokens=9, max_num_seqs=1)
    header = TraceHeader("test", {}, dataclasses.asdict(config), time=0.0, unix_time=0.0)
    with pytest.raises(ValueError, match="empty has no requests"):
        trace_workload(Trace(header, [], 0, 0), "empty")
