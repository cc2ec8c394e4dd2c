"""top_k, top_p and min_p keep what a naive reference keeps, the best token among it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st

from cudaprefill.engine.filters import descending, least_kept
from cudaprefill.engine.sampler import Sampler
from cudaprefill.engine.sampling_state import SamplingState
from cudaprefill.sampling_params import SamplingParams
from tests.sampling import reference

FILTERS = st.fixed_dictionaries(
    {
        "top_k": st.sampled_from([-1, 0, 2, 3, 5, 50, 64, 65, 10_000, 9_999_999]),
        "top_p": st.sampled_from([1.0, 0.999, 0.9, 0.5, 0.1, 1e-3, 1e-8]),
        "min_p": st.sampled_from([0.0, 1e-30, 0.01, 0.1, 0.5, 1.0]),
        "temperature": st.sampled_from([1e-5, 0.1, 1.0, 2.0, 50.0]),
    }
)
# Few distinct values, so that ties are common, and the infinities that masking leaves behind.
LOGITS = st.lists(
    st.sampled_from([-np.inf, -20.0, -3.5, -1.0, 0.0, 0.25, 0.5, 1.0, 4.0, 20.0]), min_size=2, max_size=40
)


def on_the_edge(scaled: reference.Row, params: SamplingParams) -> bool:
    """Whether rounding alone decides what a filter keeps."""
    mass = np.exp(scaled)
    shares = [mass[scaled > value].sum() / mass.sum() for value in scaled]
    return bool(np.isclose(mass, params.min_p, rtol=1e-9).any() or np.isclose(shares, params.top_p, atol=1e-9).any())


@given(LOGITS, FILTERS)
def test_the_kept_set_is_that_of_the_reference(values: list[float], filters: dict[str, Any]) -> None:
    assume(max(values) > -np.inf)
    params = SamplingParams(**filters)
    scaled = reference.scaled(np.array(values), params)
    assume(params.min_p == 1.0 or not on_the_edge(scaled, params))
    rows = torch.from_numpy(scaled)[None]
    assert (rows >= least_kept(descending(rows), [params]))[0].tolist() == reference.kept(scaled, params).tolist()


@given(LOGITS, FILTERS, st.integers(0, 2**64 - 1))
def test_the_best_token_survives_every_filter(values: list[float], filters: dict[str, Any], seed: int) -> None:
    """With the others' uniforms: a token of least uniform, the best one, is drawn when it alone is left."""
    assume(values.count(max(values)) == 1)
    assume(max(values) > -np.inf)
    params = SamplingParams(**{**filters, "top_p": min(filters["top_p"], 1e-3), "temperature": 0.1, "seed": seed})
    logits = torch.tensor([values])
    assert Sampler().sample(logits, [(0, SamplingState(params, [], []))]).token_ids == [int(np.argmax(values))]


@pytest.mark.parametrize("vocab_size", [2, 100, 128, 129, 1000])
def test_every_setting_of_top_k_and_top_p_may_be_mixed_in_one_batch(vocab_size: int) -> None:
    logits = torch.randn(1, vocab_size, generator=torch.Generator().manual_seed(5))
    settings = [
        SamplingParams(top_k=top_k, top_p=top_p, seed=seed)
        for top_k in (-1, 0, 1, 2, vocab_size, 9_999_999)
        for top_p in (0, 1e-8, 0.5, 1)
        for seed in range(20)
    ]
    output = Sampler().sample(logits, [(0, SamplingState(params, [], [])) for params in settings])
    allowed = {}
    for params, token_id in zip(settings, output.token_ids, strict=True):
        if params.greedy:
            assert token_id == logits.argmax()
            continue
        setting = (params.top_k, params.top_p)
        if setting not in allowed:
            allowed[setting] = reference.probabilities(logits[0].double().numpy(), params) > 0
        assert allowed[setting][token_id]


@pytest.mark.parametrize("off", [-1, 0, 1000, 9_999_999])
def test_top_k_of_nothing_or_of_all_is_off(off: int) -> None:
    logits = torch.randn(1, 1000)
    states = [
        [(0, SamplingState(SamplingParams(top_k=top_k, seed=seed), [], [])) for seed in range(50)] for top_k in (0, off)
    ]
    assert Sampler().sample(logits, states[0]).token_ids == Sampler().sample(logits, states[1]).token_ids


def test_a_masked_token_is_never_drawn_in_a_million_draws_of_mixed_settings() -> None:
    logits = torch.randn(1, 60, generator=torch.Generator().manual_seed(8)) * 2
    uniforms = np.random.default_rng(0).random(1_000_000)
    uniforms[:40:4], uniforms[1:40:4] = 0.0, np.nextafter(0.0, 1.0)
    uniforms[2:40:4], uniforms[3:40:4] = np.nextafter(1.0, 0.0), 1.0 - 2**-40
    kinds: list[dict[str, Any]] = [
        {"top_k": 3},
        {"top_k": 55},
        {"top_p": 0.6},
        {"min_p": 0.05},
        {"top_k": 40, "top_p": 0.8, "min_p": 0.01},
        {"top_k": 2, "top_p": 1e-8},
        {"top_p": 1e-8},
        {"min_tokens": 10, "stop_token_ids": [0, 1, 2]},
        {"logit_bias": {0: -100.0, 1: -100.0}, "top_k": 30},
        {},
    ]
    feed = iter(uniforms.tolist())
    states = [reference.FedState(SamplingParams(**kind), [], [3], feed) for kind in kinds]
    drawn: list[set[int]] = [set() for _ in kinds]
    for _ in range(50):
        token_ids = Sampler().sample(logits, [(0, state) for state in states] * 2000).token_ids
        for number, tokens in enumerate(drawn):
            tokens.update(token_ids[number :: len(kinds)])
    for state, tokens in zip(states, drawn, strict=True):
        row = reference.modified(logits[0].numpy(), state.params, [], [3])
        allowed = np.flatnonzero(reference.probabilities(row, state.params) > 0)
        assert tokens <= set(allowed.tolist())
    assert next(feed, None) is None


@pytest.mark.parametrize("num_tied", [64, 127, 128, 129, 500])
def test_tokens_that_tie_with_the_last_one_kept_are_all_kept(num_tied: int) -> None:
    """However many there are, and although only so many leading tokens are looked at first."""
    logits = torch.full((1, 1000), -5.0)
    logits[0, :num_tied] = 1.0
    for fields in ({"top_k": 2}, {"top_p": 0.01}, {"top_k": 2, "top_p": 0.5}):
        states = [(0, SamplingState(SamplingParams(seed=seed, **fields), [], [])) for seed in range(4000)]
        assert set(Sampler().sample(logits, states).token_ids) == set(range(num_tied))


def test_a_wide_nucleus_is_drawn_from_the_whole_row() -> None:
    """top_p of a flat row keeps many more tokens than lead."""
    logits = torch.randn(1, 5000, generator=torch.Generator().manual_seed(2)) * 0.1
    params = SamplingParams(top_p=0.5)
    allowed = reference.probabilities(logits[0].double().numpy(), params) > 0
    states = [(0, SamplingState(SamplingParams(top_p=0.5, seed=seed), [], [])) for seed in range(5000)]
    drawn = Sampler().sample(logits, states).token_ids
    assert allowed[drawn].all()
    assert len(set(drawn)) > 1000
