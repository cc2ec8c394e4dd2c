"""Temperature 0, and what is as good as 0, takes the best token."""

from __future__ import annotations

import math
from typing import Any
from unittest import mock

import pytest
import torch

from cudaprefill.engine import sampler as sampler_module
from cudaprefill.engine.sampler import Sampler
from cudaprefill.engine.sampling_state import SamplingState
from cudaprefill.sampling_params import SamplingParams


def sample(logits: torch.Tensor, **fields: Any) -> list[int]:
    params = SamplingParams(**fields)
    return Sampler().sample(logits, [(row, SamplingState(params, [], [])) for row in range(len(logits))]).token_ids


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("temperature", [0, 1e-3, 1e-4, 1e-5, 1e-6, 1e-30, 5e-324])
def test_tiny_temperatures_are_greedy_even_for_logits_of_half_precision(dtype: torch.dtype, temperature: float) -> None:
    generator = torch.Generator().manual_seed(3)
    logits = (torch.rand(64, 1000, generator=generator) * 40 - 20).to(dtype)
    best = torch.randint(1000, (64,), generator=generator)
    logits[torch.arange(64), best] = 20.5  # one step of the coarser dtype above all others at least
    assert sample(logits.float(), temperature=temperature, seed=1) == best.tolist()


@pytest.mark.parametrize("temperature", [1e30, 1e300, 1.7e308])
def test_huge_temperatures_draw_from_all_tokens_alike(temperature: float) -> None:
    logits = torch.tensor([[50.0, -50.0, 3.0, -torch.inf]]).expand(400, 4).contiguous()
    states = [(row, SamplingState(SamplingParams(temperature=temperature, seed=row), [], [])) for row in range(400)]
    token_ids = Sampler().sample(logits, states).token_ids
    assert all(80 < token_ids.count(token) < 190 for token in range(3))
    assert token_ids.count(3) == 0


@pytest.mark.parametrize("fields", [{"top_k": 1}, {"top_p": 0.0}, {"temperature": 0, "top_k": 5, "top_p": 0.5}])
def test_filters_that_leave_one_token_are_greedy(fields: dict[str, Any]) -> None:
    logits = torch.randn(50, 300)
    assert sample(logits, **fields) == logits.argmax(-1).tolist()


@pytest.mark.parametrize("size", [1, 127, 128, 200, 384, 49152])
def test_of_equals_the_first_is_the_best(size: int) -> None:
    logits = torch.randint(-3, 3, (50, size)).float()
    first = [row.index(max(row)) for row in logits.tolist()]
    assert sample(logits, temperature=0) == first
    wide = torch.full((50, size + 7), math.inf)[:, 7:]  # rows of a larger tensor
    wide.copy_(logits)
    assert sample(wide, temperature=0) == first


def test_a_batch_of_greedy_rows_is_searched_once_and_nothing_else() -> None:
    logits = torch.randn(8, 100)
    with mock.patch.object(sampler_module, "_choose", side_effect=AssertionError("a greedy row was worked on")):
        assert sample(logits, temperature=0) == logits.argmax(-1).tolist()


def test_logits_are_left_as_they_were() -> None:
    logits = torch.randn(4, 200)
    before = logits.clone()
    kinds: list[dict[str, Any]] = [
        {"temperature": 0},
        {"temperature": 0, "logit_bias": {3: 5.0}},
        {"top_k": 5, "repetition_penalty": 1.5},
        {"top_p": 0.9},
        {"min_p": 0.1, "logprobs": 3},
    ]
    states = [(row, SamplingState(SamplingParams(**kind), [1, 2], [3])) for row in range(4) for kind in kinds]
    Sampler().sample(logits, states)
    assert torch.equal(logits, before)


def test_greedy_rows_draw_no_uniform_and_take_no_seed() -> None:
    state = SamplingState(SamplingParams(temperature=0), [], [])
    with mock.patch.object(SamplingState, "next_uniform", side_effect=AssertionError("a greedy row drew")):
        Sampler().sample(torch.randn(1, 10), [(0, state)])


def test_an_empty_step_samples_nothing() -> None:
    output = Sampler().sample(torch.empty(0, 10), [])
    assert (output.token_ids, output.logprobs, output.errors) == ([], [], {})


@pytest.mark.parametrize("logits", [torch.randn(10), torch.randn(1, 10, dtype=torch.float64)])
def test_logits_of_another_shape_or_dtype_are_refused(logits: torch.Tensor) -> None:
    with pytest.raises(ValueError, match=r"logits must be \[R, V\] float32"):
        Sampler().sample(logits, [])
