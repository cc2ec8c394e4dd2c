"""The cost model against costs that are known."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cudaprefill.engine.step_cost import StepWork
from cudaprefill.tune.least_squares import fit_relative, nonnegative_least_squares
from cudaprefill.tune.step_times import StepModel, StepTime, step_times
from tests.observe.fake_run import FakeRun


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10**6), st.integers(1, 5), st.integers(6, 30))
def test_the_solution_is_the_best_one_without_negative_coefficients(seed: int, features: int, rows: int) -> None:
    random = np.random.default_rng(seed)
    a, b = random.normal(size=(rows, features)), random.normal(size=rows)
    x = nonnegative_least_squares(a, b)
    gradient = a.T @ (a @ x - b)
    # The conditions of Karush, Kuhn and Tucker: they say that no other x >= 0 is better.
    assert (x >= 0).all()
    assert (gradient > -1e-7 * np.linalg.norm(b) * np.linalg.norm(a)).all()
    assert np.abs(gradient[x > 0]).max(initial=0.0) < 1e-7 * np.linalg.norm(b) * np.linalg.norm(a)


def test_a_few_steps_that_were_held_up_do_not_move_the_fit() -> None:
    random = np.random.default_rng(0)
    features = np.column_stack((np.ones(200), random.uniform(0, 100, 200)))
    targets = features @ np.array([5.0, 0.3])
    targets[::20] *= 10
    assert fit_relative(features, targets) == pytest.approx([5.0, 0.3], rel=1e-3)


def some_works(count: int, seed: int = 0) -> list[StepWork]:
    random = np.random.default_rng(seed)
    works = []
    for _ in range(count):
        decodes = int(random.integers(0, 40))
        chunk = int(random.integers(0, 2) * random.integers(1, 500)) or (0 if decodes else 7)
        works.append(StepWork(chunk, chunk * float(random.integers(1, 2000)), decodes, decodes * 700))
    return works


def seconds(work: StepWork) -> float:
    tokens = work.decodes + work.chunk_tokens
    return 0.004 + 0.0005 * tokens + 3e-8 * work.chunk_pairs + 1e-7 * work.decode_context


def test_a_linear_machine_is_known_also_beyond_what_was_seen() -> None:
    model = StepModel([StepTime(work, seconds(work), None) for work in some_works(400)])
    for work in (StepWork(2000, 2e6, 3, 9000), StepWork(1, 1, 0, 0), StepWork(0, 0, 1, 10)):
        assert model.predict(work) == pytest.approx(seconds(work), rel=0.02)
    assert model.median_error < 1e-3


@pytest.mark.parametrize("seed", [9, 11])
def test_steps_that_seem_to_cost_nothing_are_drawn_as_numbers(seed: int) -> None:
    """Durations over eleven powers of ten, as of a machine that slept: no cost above zero may explain a short one."""
    random = np.random.default_rng(seed)
    works, durations = some_works(20, seed), 10 ** random.uniform(-9, 2, 20)
    pairs = enumerate(zip(works, durations, strict=True))
    model = StepModel([StepTime(work, float(duration), None, 10.0 * i) for i, (work, duration) in pairs])
    assert min(map(model.predict, works)) == 0
    drawn = [model.draw(work, 10.0 * i, random) for i, work in enumerate(works) for _ in range(10)]
    assert np.isfinite(drawn).all()


def test_draws_scatter_as_the_steps_did() -> None:
    random = np.random.default_rng(1)
    times = [
        StepTime(work, seconds(work) * float(random.choice([0.9, 1.0, 1.3])), 0.002, 0.01 * number)
        for number, work in enumerate(some_works(2000))
    ]
    model = StepModel(times)
    drawn = np.array([model.draw(time.work, time.start, random) / seconds(time.work) for time in times * 5])
    assert np.mean(drawn) == pytest.approx(np.mean([0.9, 1.0, 1.3]), rel=0.02)
    assert np.quantile(drawn, [0.1, 0.9]) == pytest.approx([0.9, 1.3], rel=0.04)
    assert model.draw_gap(times[0].work, random) == 0.002


def test_a_slow_while_of_the_run_is_slow_again_at_the_same_time() -> None:
    random = np.random.default_rng(1)
    slow = [400 <= number < 600 for number in range(1000)]
    works = some_works(1000)
    times = [
        StepTime(work, seconds(work) * (2.0 if is_slow else 1.0), 0.002, 0.1 * number)
        for number, (work, is_slow) in enumerate(zip(works, slow, strict=True))
    ]
    model = StepModel(times)

    def drawn(now: float) -> float:
        return float(np.mean([model.draw(work, now, random) / seconds(work) for work in works]))

    for now, expected in ((20.0, 1.0), (50.0, 2.0), (80.0, 1.0), (99.9 + 50.0, 2.0)):
        assert drawn(now) == pytest.approx(expected, rel=0.03)


def test_work_is_not_taken_for_expensive_because_it_came_while_the_machine_was_slow() -> None:
    random = np.random.default_rng(1)
    times, now = [], 0.0
    for number in range(4000):
        slow = 0.5 - 0.5 * float(np.cos(2 * np.pi * number / 400))
        if number % 10 == 0:  # a slow machine has more at once
            decodes = 1 + round(4 * slow) + int(random.integers(3))
        work = StepWork(0, 0.0, decodes, decodes * 300)
        taken = seconds(work) * (1 + slow) * float(np.exp(0.03 * random.standard_normal()))
        times.append(StepTime(work, taken, 0.0, now))
        now += taken
    model = StepModel(times)
    works = [StepWork(0, 0.0, decodes, decodes * 300) for decodes in range(1, 8)]
    # Which of the paces is the usual one is the model's choice; that it is the same one for all is the point.
    ratios = [model.predict(work) / seconds(work) for work in works]
    assert max(ratios) / min(ratios) < 1.03


def test_steps_are_read_of_a_run_from_its_first_step_on() -> None:
    run = FakeRun(gap=0.5)
    run.now = 1000.0
    run.submit([2] * 8, max_tokens=3)
    run.run()
    assert [time.start for time in step_times(run.events)] == [0.0, 1.5, 3.0]


def test_too_few_steps_are_refused_with_both_numbers() -> None:
    with pytest.raises(ValueError, match="at least 20 steps, the trace has 3"):
        StepModel([StepTime(work, 1.0, None) for work in some_works(3)])


def test_steps_are_read_as_the_scheduler_saw_them() -> None:
    run = FakeRun(lambda work: 0.5, gap=0.125, delivering=0.25, max_num_batched_tokens=32)
    works = []
    run.submit(list(range(40)), max_tokens=4)
    run.submit(list(range(7, 57)), max_tokens=3)
    while run.driver.scheduler.has_work():
        works.append(run.step().work)
    times = step_times(run.events)
    assert [time.work for time in times] == works
    assert {time.duration for time in times} == {0.75}
    assert [time.gap for time in times] == [0.125] * (len(times) - 1) + [None]


def test_an_idle_engine_is_no_gap() -> None:
    run = FakeRun()
    run.submit([2] * 8)
    run.step()
    run.now += 100.0
    run.submit([3] * 8)
    run.run()
    assert [time.gap for time in step_times(run.events)] == [None, None]
