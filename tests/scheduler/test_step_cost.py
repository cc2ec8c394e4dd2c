"""The model of a step's duration learns a machine from the steps it runs, and what fits into a step follows from it."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cudaprefill.engine.chunk_room import LEAST_CHUNK_TOKENS, ChunkRoom
from cudaprefill.engine.step_cost import StepCost, StepWork, chunk_pairs
from tests.scheduler.synthetic_machine import SyntheticMachine, fast_machine, slow_machine

MACHINES = [slow_machine, fast_machine]


def random_work(random_numbers: random.Random) -> StepWork:
    decodes = random_numbers.randrange(1, 64)
    work = StepWork(decodes=decodes, decode_context=decodes * random_numbers.randrange(10, 4000))
    if random_numbers.random() < 0.5:
        start, length = random_numbers.randrange(8000), random_numbers.randrange(1, 1024)
        work = work._replace(chunk_tokens=length, chunk_pairs=chunk_pairs(start, length))
    return work


def learn(cost: StepCost, machine: SyntheticMachine, steps: int, seed: int = 0) -> None:
    random_numbers = random.Random(seed)
    for _ in range(steps):
        work = random_work(random_numbers)
        cost.observe(work, machine.seconds(work))


def errors(cost: StepCost, machine: SyntheticMachine) -> list[float]:
    """Relative, of 200 steps that were not learned from, in ascending order."""
    random_numbers = random.Random(99)
    exact = SyntheticMachine(**{**vars(machine), "noise": 0.0})
    result = []
    for _ in range(200):
        work = random_work(random_numbers)
        predicted = cost.predict(work)
        assert predicted is not None
        result.append(abs(predicted / exact.seconds(work) - 1.0))
    return sorted(result)


def median(values: list[float]) -> float:
    return values[len(values) // 2]


@pytest.mark.parametrize("machine", MACHINES)
def test_a_machine_without_noise_is_learned_exactly(machine: Callable[..., SyntheticMachine]) -> None:
    cost = StepCost()
    learn(cost, machine(), 100)
    assert errors(cost, machine())[-1] < 0.02


@given(small=st.integers(1, 64), seed=st.integers(0, 1000))
def test_a_small_step_after_nothing_but_large_ones_is_learned_at_once(small: int, seed: int) -> None:
    """Large ones leave open what is base, tokens and pairs; no coefficient is negative, and still one sum must hold."""
    machine, cost, random_numbers = slow_machine(), StepCost(), random.Random(seed)
    for decodes in range(6):
        pairs = random_numbers.uniform(4e4, 1.3e5)
        work = StepWork(512 - decodes, pairs, decodes, 400 * decodes)
        cost.observe(work, machine.seconds(work))
    work = StepWork(small, chunk_pairs(0, small), 8, 3200)
    cost.observe(work, machine.seconds(work))
    assert cost.predict(work) == pytest.approx(machine.seconds(work), rel=0.1)


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("noise", [0.05, 0.2])
def test_noise_is_averaged_out_and_known(machine: Callable[..., SyntheticMachine], noise: float) -> None:
    cost = StepCost()
    learn(cost, machine(noise), 300)
    assert median(errors(cost, machine())) < noise / 2
    assert noise / 4 < cost.deviation < noise


def test_nothing_is_predicted_before_something_was_seen() -> None:
    cost = StepCost()
    assert cost.predict(StepWork(decodes=1)) is None
    learn(cost, slow_machine(), 4)
    assert cost.predict(StepWork(decodes=1)) is not None


def test_steps_of_no_duration_teach_nothing() -> None:
    cost = StepCost()
    for _ in range(10):
        cost.observe(StepWork(decodes=1), 0.0)
    assert not cost.known


def test_hiccups_are_passed_over() -> None:
    """Single steps, or two in a row, that last ten times or a tenth."""
    cost, machine = StepCost(), slow_machine(noise=0.05)
    random_numbers = random.Random(1)
    learn(cost, machine, 100)
    for number in range(50):
        work = random_work(random_numbers)
        machine.slowness = 10.0 if number % 10 in (3, 4) else 0.1 if number % 10 == 7 else 1.0
        cost.observe(work, machine.seconds(work))
    machine.slowness = 1.0
    assert median(errors(cost, machine)) < 0.05


@pytest.mark.parametrize("warm_up", [1, 2])
def test_first_steps_that_last_much_longer_do_not_spoil_the_rest(warm_up: int) -> None:
    cost, machine = StepCost(), fast_machine(noise=0.02)
    machine.slowness = 50.0
    learn(cost, machine, warm_up)
    machine.slowness = 1.0
    learn(cost, machine, 100)
    assert median(errors(cost, machine)) < 0.05


@pytest.mark.parametrize("slowness", [0.3, 3.0])
def test_a_machine_that_became_another_is_learned_anew(slowness: float) -> None:
    cost, machine = StepCost(), slow_machine(noise=0.02)
    learn(cost, machine, 200)
    machine.slowness = slowness
    learn(cost, machine, 30, seed=1)
    assert median(errors(cost, machine)) < 0.1
    learn(cost, machine, 100, seed=2)
    assert median(errors(cost, machine)) < 0.03


def test_what_chunks_cost_is_still_known_after_ten_thousand_steps_of_decodes() -> None:
    cost, machine = StepCost(), slow_machine(noise=0.05)
    learn(cost, machine, 100)
    for number in range(10_000):
        work = StepWork(decodes=1, decode_context=100 + number % 1000)
        cost.observe(work, machine.seconds(work))
    assert median(errors(cost, machine)) < 0.1


@given(
    st.lists(st.floats(0.0, 0.01), min_size=6, max_size=6),
    st.integers(0, 1000),
    st.floats(0.0, 0.3),
)
def test_predictions_are_never_negative_nor_fall_when_there_is_more_work(
    coefficients: list[float], seed: int, noise: float
) -> None:
    cost = StepCost()
    machine = SyntheticMachine(*coefficients, noise=noise, random_numbers=random.Random(seed))
    learn(cost, machine, 30, seed)
    work = random_work(random.Random(seed))
    more = StepWork(*(number + 1 for number in work))
    if cost.known:
        predicted, above = cost.predict(work), cost.predict(more)
        assert predicted is not None
        assert above is not None
        assert 0.0 <= predicted <= above * (1.0 + 1e-9)


@given(st.integers(0, 4000), st.lists(st.integers(0, 20_000), min_size=1, max_size=5), st.floats(0.01, 2.0))
def test_what_fits_is_the_most_that_the_prediction_allows(tokens: int, starts: list[int], target: float) -> None:
    cost = StepCost()
    learn(cost, slow_machine(), 100)
    cost.max_chunk_tokens, cost.max_chunk_pairs = 10**6, 1e12  # nothing is too large to be trusted
    decodes = StepWork(decodes=4, decode_context=400)
    room = ChunkRoom(tokens)
    room.keep_to(target, cost, decodes)
    work = decodes
    for start in starts:
        length = room.tokens_at(start)
        room.spend(start, length)
        work = work._replace(
            chunk_tokens=work.chunk_tokens + length, chunk_pairs=work.chunk_pairs + chunk_pairs(start, length)
        )
    predicted = cost.predict(work)
    assert predicted is not None
    limit = target / (1.0 + 2.5 * cost.deviation)
    assert work.chunk_tokens <= tokens
    assert work.chunk_tokens <= LEAST_CHUNK_TOKENS or predicted <= limit * 1.001
    more = cost.predict(
        work._replace(chunk_tokens=work.chunk_tokens + 1, chunk_pairs=work.chunk_pairs + starts[-1] + 1000)
    )
    assert more is not None
    assert work.chunk_tokens == tokens or more > limit


def test_the_unknown_is_explored_by_steps_twice_as_large_as_before() -> None:
    cost = StepCost()
    decodes = StepWork(decodes=1, decode_context=10)

    def most(start: int) -> int:
        room = ChunkRoom(100_000)
        room.keep_to(1000.0, cost, decodes)
        return room.tokens_at(start)

    assert most(0) == 64
    assert most(50_000) == LEAST_CHUNK_TOKENS  # its context is new, too
    for _ in range(4):
        cost.observe(decodes._replace(chunk_tokens=100, chunk_pairs=chunk_pairs(0, 300)), 0.1)
    assert most(0) == 200


def test_without_a_target_there_is_room_for_the_budget() -> None:
    room = ChunkRoom(1000)
    assert room.tokens_at(10**6) == 1000
    room.spend(10**6, 400)
    assert room.tokens_at(0) == 600


def test_a_pause_between_steps_is_learned_and_a_long_one_counts_little() -> None:
    cost = StepCost()
    for _ in range(200):
        cost.observe_pause(0.002)
    assert cost.pause == pytest.approx(0.002, rel=0.01)
    cost.observe_pause(100.0)
    assert cost.pause < 0.003
