"""Equal work, equal result, with a float8 KV cache.

What is stored of a token does not depend on how its request was computed but for the last place of a sum, which may
decide to which of two neighbours a number is rounded. So logits of the same context agree to within a fraction of what
the rounding itself changes.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from cudaprefill.engine.kv_cache import KVCache
from cudaprefill.engine.kv_scales import FLOAT8, largest_numbers, scales_for
from cudaprefill.engine.model_runner import ModelRunner
from cudaprefill.models import Decoder, load_model
from cudaprefill.sampling_params import SamplingParams
from tests.engine.test_equality import NUM_TOKENS, PROMPTS, Run, run
from tests.engine.test_equality_integers import largest_difference
from tests.models.tiny import save_tiny_model

MakeRunner = Callable[[Decoder, KVCache], ModelRunner]
FAMILIES = ("llama", "qwen2", "gemma2")  # with biases; with windows and soft caps


def calibrated(model: Decoder) -> Tensor:
    return scales_for(largest_numbers(model, torch.tensor(PROMPTS[-1])))


def in_float8(scales: Tensor) -> MakeRunner:
    """A runner over a cache of that kind in place of the one that it is given, whose unused slots are NaN as well."""

    def make_runner(model: Decoder, kv_cache: KVCache) -> ModelRunner:
        config = model.config
        shape = (config.num_layers, kv_cache.num_blocks, config.num_kv_heads, kv_cache.block_size, config.head_size)
        cache = KVCache(*shape, FLOAT8, model.device, scales)
        cache.data.fill_(torch.nan)
        return ModelRunner(model, cache)

    return make_runner


@pytest.fixture(scope="module", params=FAMILIES)
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Decoder:
    folder: Path = tmp_path_factory.mktemp(request.param)
    save_tiny_model(folder, request.param)
    return load_model(folder)


@pytest.fixture(scope="module")
def make_runner(model: Decoder) -> MakeRunner:
    return in_float8(calibrated(model))


@pytest.fixture(scope="module")
def one_shot(model: Decoder, make_runner: MakeRunner) -> Run:
    return run(model, num_blocks=64, budget=512, caching=False, make_runner=make_runner)


@pytest.fixture(scope="module")
def rounding(model: Decoder, one_shot: Run) -> float:
    """What the rounding of K and V changes in the logits."""
    return largest_difference(one_shot, run(model, num_blocks=64, budget=512, caching=False))


def test_the_rounding_shows_and_is_small(one_shot: Run, rounding: float) -> None:
    spread = float(torch.stack([logits for _, logits in one_shot.sampler.seen]).std())
    assert 0 < rounding < spread


@pytest.mark.parametrize(
    "setting",
    [
        {"num_blocks": 64, "budget": 1, "caching": False},
        {"num_blocks": 64, "budget": 17, "caching": False},
        {"num_blocks": 64, "budget": 24, "caching": True, "rounds": 2},
    ],
    ids=["token by token", "chunks of 17", "cached"],
)
def test_no_schedule_changes_the_logits(
    model: Decoder, make_runner: MakeRunner, one_shot: Run, rounding: float, setting: dict[str, Any]
) -> None:
    assert largest_difference(run(model, **setting, make_runner=make_runner), one_shot) < rounding / 4


def test_preemption_does_not_change_the_logits(
    model: Decoder, make_runner: MakeRunner, one_shot: Run, rounding: float
) -> None:
    preempted = run(model, num_blocks=12, budget=40, caching=True, make_runner=make_runner)
    assert sum(request.num_preemptions for request in preempted.requests) > 0
    assert largest_difference(preempted, one_shot) < rounding / 4


def test_a_fork_copies_the_block_that_it_goes_on_in(model: Decoder, make_runner: MakeRunner, rounding: float) -> None:
    params = SamplingParams(n=3, temperature=50.0, seed=1, max_tokens=NUM_TOKENS, ignore_eos=True, detokenize=False)
    forked = run(model, num_blocks=64, budget=40, caching=True, params=params, make_runner=make_runner)
    alone = run(model, num_blocks=64, budget=512, caching=False, params=params, make_runner=make_runner)
    assert largest_difference(forked, alone) < rounding / 4
