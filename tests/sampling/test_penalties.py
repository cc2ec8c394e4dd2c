"""min_tokens, logit_bias and penalties against a naive reference, row by row in float64."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from cudaprefill.engine.penalties import TokenCounts, modify_logits
from cudaprefill.engine.sampler import Sampler
from cudaprefill.engine.sampling_state import SamplingState
from cudaprefill.sampling_params import SamplingParams
from tests.sampling import reference

VOCAB_SIZE = 30
TOKENS = st.lists(st.integers(0, VOCAB_SIZE - 1), max_size=40)
PARAMS = st.builds(
    SamplingParams,
    presence_penalty=st.sampled_from([0.0, 0.0, -2.0, 0.7, 2.0]),
    frequency_penalty=st.sampled_from([0.0, 0.0, -2.0, 0.3, 2.0]),
    repetition_penalty=st.sampled_from([1.0, 1.0, 0.01, 0.8, 1.3, 100.0]),
    logit_bias=st.dictionaries(st.integers(0, VOCAB_SIZE - 1), st.floats(-100, 100), max_size=4),
    min_tokens=st.sampled_from([0, 0, 1, 20]),
    max_tokens=st.none(),
    stop_token_ids=st.lists(st.integers(0, VOCAB_SIZE - 1), max_size=3),
    ignore_eos=st.booleans(),
)


@given(st.lists(st.tuples(PARAMS, TOKENS, TOKENS), min_size=1, max_size=5), st.integers(0, 2**32))
def test_a_batch_of_modified_rows_equals_the_reference(rows: list[Any], seed: int) -> None:
    logits = torch.randn(len(rows), VOCAB_SIZE, generator=torch.Generator().manual_seed(seed)) * 5
    expected = [
        reference.modified(logits[row].numpy(), params, prompt, output, [2])
        for row, (params, prompt, output) in enumerate(rows)
    ]
    modify_logits(logits, [SamplingState(params, prompt, output, [2]) for params, prompt, output in rows])
    np.testing.assert_allclose(logits.numpy(), np.array(expected), rtol=1e-5, atol=1e-4)


@given(TOKENS, st.lists(TOKENS, max_size=5))
def test_counts_grow_with_the_output(prompt: list[int], pieces: list[list[int]]) -> None:
    counts, output = TokenCounts(prompt), []
    for piece in pieces:
        output += piece
        counts.update(output)
        counted = dict(zip(counts.token_ids.tolist(), counts.counts.tolist(), strict=True))
        assert counted == {token: output.count(token) for token in {*prompt, *output}}


def test_counts_of_a_long_output_of_distinct_tokens() -> None:
    counts = TokenCounts([5])
    counts.update(range(1000))
    assert counts.counts.tolist() == [1.0] * 1000
    assert sorted(counts.token_ids) == list(range(1000))


@pytest.mark.parametrize("temperature", [0, 1])
def test_min_tokens_keeps_every_end_away_until_it_is_reached(temperature: float) -> None:
    logits = torch.tensor([[0.0, 50.0, 40.0, 1.0]])
    params = SamplingParams(temperature=temperature, min_tokens=3, stop_token_ids=[2], seed=1)
    for length in range(5):
        (token_id,) = Sampler().sample(logits, [(0, SamplingState(params, [0], [3] * length, [1]))]).token_ids
        assert token_id in ((0, 3) if length < 3 else (1,))


def test_an_ignored_eos_is_a_token_like_any_other() -> None:
    logits = torch.tensor([[0.0, 50.0, 40.0, 1.0]])
    params = SamplingParams(temperature=0, min_tokens=3, stop_token_ids=[2], ignore_eos=True)
    assert Sampler().sample(logits, [(0, SamplingState(params, [0], [], [1]))]).token_ids == [1]


def test_siblings_of_one_row_are_penalized_for_their_own_output() -> None:
    logits = torch.tensor([[5.0, 4.9, 4.8, 0.0]])
    lead = SamplingState(SamplingParams(temperature=0, presence_penalty=1.0, n=3), [3], [0])
    outputs = [(0, lead), (0, lead.fork(1, [1])), (0, lead.fork(2, [0, 1]))]
    assert Sampler().sample(logits, outputs).token_ids == [1, 0, 2]


@settings(max_examples=20)
@given(TOKENS, TOKENS)
def test_repetition_penalty_sees_prompt_and_output_and_the_others_the_output_alone(
    prompt: list[int], output: list[int]
) -> None:
    logits = torch.ones(3, VOCAB_SIZE)
    kinds: list[dict[str, Any]] = [{"repetition_penalty": 2.0}, {"presence_penalty": 0.5}, {"frequency_penalty": 0.25}]
    modify_logits(logits, [SamplingState(SamplingParams(**kind), prompt, output) for kind in kinds])
    for token in range(VOCAB_SIZE):
        assert logits[0, token] == (0.5 if token in {*prompt, *output} else 1.0)
        assert logits[1, token] == (0.5 if token in output else 1.0)
        assert logits[2, token] == 1.0 - 0.25 * output.count(token)
