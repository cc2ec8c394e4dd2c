"""Log-probabilities are those of the model's own logits."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from cudaprefill.engine.sampler import Sampler
from cudaprefill.engine.sampling_state import SamplingState
from cudaprefill.sampling_params import SamplingParams

LOGITS = torch.randn(4, 500, generator=torch.Generator().manual_seed(0)) * 4


def exact(row: int) -> Any:
    values = LOGITS[row].double().numpy()
    return values - values.max() - np.log(np.exp(values - values.max()).sum())


def test_rows_that_do_not_ask_get_none() -> None:
    params = [SamplingParams(logprobs=count, seed=1) for count in (None, 0, None, 3)]
    output = Sampler().sample(LOGITS, [(row, SamplingState(p, [], [])) for row, p in enumerate(params)])
    assert [None if entry is None else len(entry) for entry in output.logprobs][:3] == [None, 1, None]
    assert output.logprobs[3] is not None


@pytest.mark.parametrize("count", [0, 1, 5, 20])
@pytest.mark.parametrize(
    "fields",
    [{"temperature": 0}, {"temperature": 5.0}, {"top_k": 10, "logit_bias": {3: 30.0}, "repetition_penalty": 2}],
)
def test_the_sampled_token_comes_first_then_the_most_likely_with_their_ranks(
    count: int, fields: dict[str, Any]
) -> None:
    states = [(row, SamplingState(SamplingParams(logprobs=count, seed=row, **fields), [1, 2], [3])) for row in range(4)]
    output = Sampler().sample(LOGITS, states)
    for row, (token_id, logprobs) in enumerate(zip(output.token_ids, output.logprobs, strict=True)):
        assert logprobs is not None
        expected = exact(row)
        order = np.argsort(-expected)
        assert next(iter(logprobs)) == token_id
        assert [token for token in logprobs if token != token_id] == [t for t in order[:count] if t != token_id]
        assert len(logprobs) == (count if token_id in order[:count] else count + 1)
        for token, entry in logprobs.items():
            assert entry.logprob == pytest.approx(expected[token], abs=1e-5)
            assert entry.rank == int(np.flatnonzero(order == token)[0]) + 1


def test_more_logprobs_than_tokens_gives_them_all() -> None:
    state = SamplingState(SamplingParams(logprobs=20, temperature=0), [], [])
    (logprobs,) = Sampler().sample(torch.randn(1, 7), [(0, state)]).logprobs
    assert logprobs is not None
    assert sorted(logprobs) == list(range(7))
    assert sum(np.exp(entry.logprob) for entry in logprobs.values()) == pytest.approx(1.0)


def test_equal_tokens_share_the_better_rank() -> None:
    state = SamplingState(SamplingParams(logprobs=0, temperature=0), [], [])
    (logprobs,) = Sampler().sample(torch.zeros(1, 7), [(0, state)]).logprobs
    assert logprobs is not None
    assert [entry.rank for entry in logprobs.values()] == [1]


def test_siblings_of_one_row_get_their_own() -> None:
    lead = SamplingState(SamplingParams(logprobs=2, n=4, seed=0, temperature=3.0), [], [])
    outputs = [(1, lead), *((1, lead.fork(index, [])) for index in range(1, 4))]
    output = Sampler().sample(LOGITS, outputs)
    for token_id, logprobs in zip(output.token_ids, output.logprobs, strict=True):
        assert logprobs is not None
        assert next(iter(logprobs)) == token_id
