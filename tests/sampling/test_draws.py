"""Draws follow the distribution, and the seed alone decides them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from cudaprefill.engine.sampler import Sampler
from cudaprefill.engine.sampling_state import SamplingState
from cudaprefill.sampling_params import SamplingParams
from tests.sampling import reference

KINDS: list[dict[str, Any]] = [
    {"temperature": 0},
    {"temperature": 0, "repetition_penalty": 1.3, "logit_bias": {5: 4.0}},
    {},
    {"temperature": 0.7, "min_p": 0.05},
    {"top_k": 20},
    {"top_k": 100, "top_p": 0.95},
    {"top_p": 0.9},
    {"top_p": 0.9, "frequency_penalty": 0.5, "presence_penalty": 0.3},
    {"temperature": 1.5, "top_k": 50, "top_p": 0.8, "min_p": 0.02, "repetition_penalty": 1.1},
    {"min_tokens": 10, "stop_token_ids": [1, 2, 3]},
]


@pytest.mark.parametrize("fields", [kind for kind in KINDS if not SamplingParams(**kind).greedy])
@pytest.mark.parametrize("vocab_size", [50, 300])
def test_seeded_draws_follow_the_distribution(fields: dict[str, Any], vocab_size: int) -> None:
    """Chi-square over 40,000 draws of one seed: beyond five standard deviations of the statistic is wrong."""
    logits = torch.randn(1, vocab_size, generator=torch.Generator().manual_seed(11)) * 2
    draws = 40_000
    params = SamplingParams(seed=1234, max_tokens=None, **fields)
    expected = draws * reference.probabilities(
        reference.modified(logits[0].double().numpy(), params, [7, 8], [8]), params
    )
    state = reference.FedState(params, [7, 8], [8], stream(1234, 0, range(draws)))
    drawn = Sampler().sample(logits, [(0, state)] * draws).token_ids
    observed = np.bincount(drawn, minlength=vocab_size)
    assert observed[expected == 0].sum() == 0
    often = expected >= 5
    cells = [*zip(observed[often], expected[often], strict=True), (observed[~often].sum(), expected[~often].sum())]
    cells = [cell for cell in cells if cell[1] > 0]
    chi_square = sum((seen - wanted) ** 2 / wanted for seen, wanted in cells)
    freedom = len(cells) - 1
    assert chi_square < freedom + 5 * np.sqrt(2 * freedom) + 5


@given(st.integers(0, 2**32), st.lists(st.sampled_from(range(len(KINDS))), min_size=1, max_size=6), st.booleans())
def test_the_drawn_token_is_where_the_uniform_falls(seed: int, kinds: list[int], wide: bool) -> None:
    """Against a cumulative distribution in float64, in the order of token ids."""
    generator = torch.Generator().manual_seed(seed)
    vocab_size = 1031 if wide else 97
    logits = torch.randn(len(kinds), vocab_size, generator=generator) * 3
    rng = np.random.default_rng(seed)
    states = []
    for kind in kinds:
        prompt, output = rng.integers(vocab_size, size=9).tolist(), rng.integers(vocab_size, size=5).tolist()
        states.append(SamplingState(SamplingParams(seed=seed, **KINDS[kind]), prompt, output))
    token_ids = Sampler().sample(logits, list(enumerate(states))).token_ids
    for row, (state, token_id) in enumerate(zip(states, token_ids, strict=True)):
        params = state.params
        values = reference.modified(logits[row].numpy(), params, state.prompt_token_ids, state.output_token_ids)
        if params.greedy:
            assert values[token_id] >= values.max() - 1e-5
            continue
        up_to = reference.probabilities(values, params).cumsum()
        assert up_to[token_id] - up_to[token_id - 1] * (token_id > 0) > 0
        assert up_to[token_id - 1] * (token_id > 0) - 1e-5 <= state.next_uniform() <= up_to[token_id] + 1e-5


@given(st.integers(0, 2**32), st.permutations(range(2 * len(KINDS))), st.integers(1, 2 * len(KINDS)))
@settings(max_examples=40)
def test_neighbours_change_nothing(seed: int, order: list[int], count: int) -> None:
    """A row alone and among any others, in any order and at any row: the same token."""
    logits = torch.randn(2 * len(KINDS), 400, generator=torch.Generator().manual_seed(seed)) * 3

    def state(number: int) -> SamplingState:
        return SamplingState(SamplingParams(seed=seed + number, **KINDS[number % len(KINDS)]), [1, 2, 3], [4, 4])

    alone = [
        Sampler().sample(logits[number : number + 1], [(0, state(number))]).token_ids[0] for number in order[:count]
    ]
    together = Sampler().sample(logits, [(number, state(number)) for number in order[:count]]).token_ids
    assert together == alone


def stream(seed: int | None, index: int, positions: range, start: SamplingState | None = None) -> list[float]:
    """The uniforms of some positions of an output."""
    state = start or SamplingState(SamplingParams(seed=seed), [], [], index=index)
    numbers = []
    for position in positions:
        state.output_token_ids = range(position)  # only its length counts
        numbers.append(state.next_uniform())
    return numbers


def test_a_preempted_request_goes_on_with_the_same_uniforms() -> None:
    """They depend on the position alone: whoever starts in the middle, or goes back, gets the same."""
    whole = stream(5, 0, range(200))
    assert stream(5, 0, range(130, 200)) == whole[130:]
    assert stream(5, 0, range(199, -1, -1)) == whole[::-1]
    assert len(set(whole)) == 200
    assert all(0.0 <= number < 1.0 for number in whole)


def test_every_seed_and_every_sibling_has_a_stream_of_its_own() -> None:
    first = [tuple(stream(seed, index, range(4))) for seed in (0, 1, 2**64 - 1) for index in range(5)]
    assert len(set(first)) == len(first)
    lead = SamplingState(SamplingParams(seed=7, n=3), [1], [])
    assert stream(7, 2, range(4), lead.fork(2, [])) == stream(7, 2, range(4))


def test_a_request_without_a_seed_takes_one_and_keeps_it() -> None:
    lead = SamplingState(SamplingParams(n=2), [], [])
    assert stream(None, 0, range(3), lead) == stream(None, 0, range(3), lead)
    assert lead.seed == lead.fork(1, []).seed
    assert lead.seed != SamplingState(SamplingParams(), [], []).seed


def test_siblings_share_a_row_and_draw_apart() -> None:
    logits = torch.zeros(1, 1000)
    lead = SamplingState(SamplingParams(n=8, seed=3), [1], [])
    outputs = [(0, lead), *((0, lead.fork(index, [])) for index in range(1, 8))]
    token_ids = Sampler().sample(logits, outputs).token_ids
    assert len(set(token_ids)) == 8
    assert Sampler().sample(logits, outputs[3:]).token_ids == token_ids[3:]


@pytest.mark.parametrize("index", [0, 3])
def test_the_uniforms_are_those_of_one_philox_generator_read_in_order(index: int) -> None:
    """Users keep seeds: the stream must not change from one version to the next."""
    generator = np.random.Generator(np.random.Philox(key=42 | index << 64))
    assert stream(42, index, range(200)) == generator.random(200).tolist()


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_a_gpu_draws_the_same_tokens() -> None:
    logits = torch.randn(len(KINDS), 5000, generator=torch.Generator().manual_seed(6)) * 3
    states = [(row, SamplingState(SamplingParams(seed=row, **kind), [1, 2], [2])) for row, kind in enumerate(KINDS)]
    assert Sampler().sample(logits.cuda(), states).token_ids == Sampler().sample(logits, states).token_ids
