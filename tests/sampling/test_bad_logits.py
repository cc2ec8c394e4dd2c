"""A row that cannot be sampled ends its own outputs, with a reason, and no others."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from cudaprefill.engine.sampler import Sampler
from cudaprefill.engine.sampling_state import SamplingState
from cudaprefill.sampling_params import SamplingParams

KINDS: list[dict[str, Any]] = [
    {"temperature": 0},
    {"temperature": 0, "presence_penalty": 1.0},
    {},
    {"top_k": 5},
    {"top_k": 200},
    {"top_p": 0.5},
    {"min_p": 0.1},
    {"logprobs": 5},
    {"min_tokens": 5, "stop_token_ids": [17]},
]


def state(seed: int, fields: dict[str, Any]) -> SamplingState:
    return SamplingState(SamplingParams(seed=seed, **fields), [1], [2])


@pytest.mark.parametrize("fields", KINDS)
@pytest.mark.parametrize(
    ("place", "value", "reason"),
    [
        (17, math.nan, "1 of 300 are NaN, the first is token 17"),
        (17, math.inf, "1 of 300 are infinite, the first is token 17"),
        (slice(None), -math.inf, "all 300 are -infinity"),
        (slice(None), math.nan, "300 of 300 are NaN, the first is token 0"),
    ],
)
def test_a_row_that_is_not_finite_names_itself(fields: dict[str, Any], place: Any, value: float, reason: str) -> None:
    logits = torch.randn(3, 300, generator=torch.Generator().manual_seed(4))
    good = Sampler().sample(logits, [(row, state(row, fields)) for row in (0, 2)])
    logits[1, place] = value
    output = Sampler().sample(logits, [(row, state(row, fields)) for row in (0, 1, 2)])
    assert [output.token_ids[0], output.token_ids[2]] == good.token_ids
    assert output.token_ids[1] == -1
    assert output.errors == {1: f"logits row 1: {reason}"}
    assert output.logprobs[1] is None


def test_minus_infinity_beside_finite_logits_is_a_mask_like_any_other() -> None:
    logits = torch.full((len(KINDS), 300), -math.inf)
    logits[:, 5] = -1e30
    output = Sampler().sample(logits, [(row, state(row, fields)) for row, fields in enumerate(KINDS)])
    assert output.token_ids == [5] * len(KINDS)


def test_min_tokens_that_leaves_nothing_says_so() -> None:
    params = SamplingParams(min_tokens=3, stop_token_ids=[0, 1])
    output = Sampler().sample(torch.zeros(1, 2), [(0, SamplingState(params, [], []))])
    assert output.errors == {0: "logits row 0: min_tokens leaves none of 2 tokens to draw"}


def test_a_nan_behind_a_mask_is_still_an_error() -> None:
    logits = torch.tensor([[0.0, math.nan]])
    params = SamplingParams(min_tokens=3, stop_token_ids=[1])
    assert 0 in Sampler().sample(logits, [(0, SamplingState(params, [], []))]).errors


@pytest.mark.parametrize("scale", [1e30, 1e38])
def test_finite_logits_of_any_size_are_sampled(scale: float) -> None:
    logits = torch.tensor([[-3.0, 1.0, 3.0]]) * scale
    for fields in KINDS[:8]:
        params = SamplingParams(seed=1, **fields)
        assert Sampler().sample(logits, [(0, SamplingState(params, [], []))]).token_ids == [2]
