"""The target that an engine has by itself: for those who read when a prompt arrives, and never against the whole."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from cudaprefill.engine.schedule import Schedule
from cudaprefill.protocol.itl_target import AUTO_ITL_TARGET_MS
from tests.scheduler.synthetic_machine import slow_machine
from tests.scheduler.timed_run import PAUSE, Run

AUTO = AUTO_ITL_TARGET_MS / 1e3  # seconds


def shape(schedule: Schedule) -> tuple[int, list[tuple[int, int]]]:
    """How many decode, and which chunks are computed beside them."""
    return len(schedule.decodes.requests), [(chunk.start, chunk.length) for chunk in schedule.chunks]


def steps_until_idle(run: Run) -> list[tuple[int, list[tuple[int, int]]]]:
    shapes = []
    while run.scheduler.has_work():
        shapes.append(shape(run.step()))
    return shapes


@pytest.mark.parametrize("noise", [0.0, 0.05])
def test_who_reads_when_a_prompt_arrives_waits_no_longer_than_the_target(noise: float) -> None:
    run = Run(slow_machine(noise), "auto")
    run.run_with_prompts(400)
    settled = run.gaps(50)
    assert settled[int(0.95 * len(settled))] <= AUTO
    assert settled[-1] <= 1.3 * AUTO
    assert settled[len(settled) // 2] > 0.7 * AUTO


def test_a_batch_that_arrives_at_once_is_computed_as_without_a_target() -> None:
    runs = []
    for target in ("auto", None):
        run = Run(slow_machine(), target, budget=512, streams=0)  # type: ignore[arg-type]
        for _ in range(16):
            run.prompt(390, max_tokens=64)
        runs.append(steps_until_idle(run))
    assert runs[0] == runs[1]
    assert (512 - 1) in {sum(length for _, length in chunks) for decodes, chunks in runs[0] if decodes == 1}


def test_who_comes_while_the_first_of_a_batch_are_still_prefilled_belongs_to_it() -> None:
    run = Run(slow_machine(), "auto", budget=512, streams=0)
    first = run.prompt(1000, max_tokens=64)
    run.step()
    late = run.prompt(1000, max_tokens=64)
    while late.num_output_tokens == 0:
        schedule = run.step()
        assert schedule.num_tokens == 512 or schedule.chunks[-1].is_last
    assert first.num_output_tokens > 0


def test_who_comes_when_the_batch_reads_is_cut_to_the_target() -> None:
    run = Run(slow_machine(), "auto", budget=512, streams=0)
    for _ in range(8):
        run.prompt(390, max_tokens=200)
    while run.scheduler.num_decoding < 8:
        run.step()
    late = run.prompt(2000)
    gaps = []
    while late.num_output_tokens == 0:
        run.step()
        gaps.append(run.steps[-1][1] + PAUSE)
    assert max(gaps) <= 1.05 * AUTO


def test_chunks_get_as_long_as_the_decodes_where_these_take_long() -> None:
    machine = dataclasses.replace(slow_machine(), decode=0.04)  # 8 of them take 0.33 seconds, more than the target
    run = Run(machine, "auto", streams=8)
    for _ in range(10):
        run.step()
    alone = run.steps[-1][1]
    assert alone > 2 * AUTO
    prompt = run.prompt(3000)
    seconds = []
    while prompt.num_output_tokens == 0:
        run.step()
        seconds.append(run.steps[-1][1])
    settled = seconds[6:-1]  # the size of chunks is explored by doubling, and the last one is what was left
    assert min(settled) > 1.9 * alone
    assert max(settled) < 2.2 * alone


def test_a_prompt_alone_takes_the_whole_budget() -> None:
    run = Run(slow_machine(), "auto", streams=0)
    run.prompt(4096, max_tokens=1)
    assert [run.step().num_tokens, run.step().num_tokens] == [2048, 2048]


def test_it_can_be_set_and_taken_away_while_requests_run() -> None:
    run = Run(slow_machine(), None)
    run.run_with_prompts(100)
    run.prompt(14_000)
    assert run.step().num_tokens == 2048
    for target, least, most in (("auto", 30, 90), (0, 2048, 2048), (400.0, 90, 230), ("auto", 30, 90)):
        run.scheduler.change_settings(itl_target_ms=target)  # type: ignore[arg-type]
        assert least <= run.step().num_tokens <= most
    assert run.scheduler.settings.itl_target_ms == "auto"


@pytest.mark.parametrize("target", ["Auto", "", "150", float("nan"), -1.0, True, [150]])
def test_a_wrong_target_is_named_and_nothing_is_changed(target: Any) -> None:
    run = Run(slow_machine(), "auto")
    with pytest.raises(ValueError, match="itl_target_ms must be a number of milliseconds, 0 for no target, or"):
        run.scheduler.change_settings(itl_target_ms=target)
    assert run.scheduler.settings.itl_target_ms == "auto"
