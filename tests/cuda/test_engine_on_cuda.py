"""The engine's equality tests with the emulated CUDA kernels under a tiny model.

In float32, where attention takes the plain kernels, logits are those of transformers. In bfloat16, where it runs on the
tensor cores, they are as exact as those of transformers in bfloat16.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from dataclasses import fields, is_dataclass
from functools import partial
from typing import Any

import pytest
import torch

pytest.importorskip("transformers")
pytest.importorskip("tokenizers")

from cudaprefill.models import Decoder, load_model
from tests.cuda.backends import backend_of_ops, emulation
from tests.engine.test_equality import NUM_TOKENS, PROMPTS, Run, assert_equals_reference, run
from tests.models.tiny import save_tiny_model

ModelAndCheck = tuple[Decoder, Callable[[Run], None]]


@pytest.fixture(scope="module", params=["float32", "bfloat16", "bfloat16 on Hopper"])
def model_and_check(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ModelAndCheck]:
    """A model that norms its q and k heads, so that every kernel has work."""
    folder = tmp_path_factory.mktemp("qwen3")
    reference = save_tiny_model(folder, "qwen3")
    with backend_of_ops("emulated"):
        model = load_model(folder)
        if request.param == "float32":
            yield model, partial(assert_equals_reference, reference)
        else:
            in_bfloat16 = reference.to(torch.bfloat16)
            exact = copy.deepcopy(in_bfloat16).double()  # of the rounded weights
            decoder = Decoder(model.config, in_bfloat16_too(model.weights), model.rope_tables)
            decoder.attends_at_once = True  # as on a GPU
            emulation().set_compute_capability(90 if "Hopper" in request.param else 80)
            yield decoder, partial(assert_as_exact_as_bfloat16, exact, in_bfloat16)
            emulation().set_compute_capability(80)


def in_bfloat16_too(weights: Any) -> Any:
    """A tensor, or what holds tensors, with every one of them in bfloat16."""
    if isinstance(weights, torch.Tensor):
        return weights.to(torch.bfloat16)
    if isinstance(weights, tuple):
        return tuple(map(in_bfloat16_too, weights))
    if is_dataclass(weights):
        return type(weights)(**{field.name: in_bfloat16_too(getattr(weights, field.name)) for field in fields(weights)})
    return weights


@torch.inference_mode()
def assert_as_exact_as_bfloat16(exact: Any, in_bfloat16: Any, run: Run) -> None:
    """Logits are at most twice as far from float64 as those of torch in bfloat16; tokens are the best or nearly so."""
    rows: dict[tuple[int, ...], tuple[torch.Tensor, torch.Tensor]] = {}
    for request in run.requests:
        whole = [*request.prompt_token_ids, *request.output_token_ids]
        logits = [model(torch.tensor([whole])).logits[0].double() for model in (exact, in_bfloat16)]
        rows |= {tuple(whole[: end + 1]): (logits[0][end], logits[1][end]) for end in range(len(whole))}
    assert len(run.sampler.seen) >= NUM_TOKENS * len(run.requests)
    expected = [rows[context] for context, _ in run.sampler.seen]
    right, in_torch = (torch.stack(part) for part in zip(*expected, strict=True))
    ours = torch.stack([row for _, row in run.sampler.seen]).double()
    error, torch_error = (ours - right).norm(), (in_torch - right).norm()
    assert error <= 2 * torch_error, f"error {error:.3g}, in torch {torch_error:.3g}"
    behind_best = right.amax(-1) - right.gather(1, ours.argmax(-1, keepdim=True))[:, 0]
    assert behind_best.max() <= 2 * (in_torch - right).abs().max()
    assert (behind_best > 0).sum() <= len(ours) / 20


@pytest.fixture(autouse=True)
def kernels_run() -> Iterator[None]:
    """Fails a test in which the kernels were not what ran."""
    emulation().reset_counters()
    yield
    assert emulation().counters()["launches"] > 100


def test_one_shot(model_and_check: ModelAndCheck) -> None:
    model, check = model_and_check
    check(run(model, num_blocks=64, budget=512, caching=False))


def test_chunked(model_and_check: ModelAndCheck) -> None:
    model, check = model_and_check
    check(run(model, num_blocks=64, budget=7, caching=False))


def test_cached(model_and_check: ModelAndCheck) -> None:
    model, check = model_and_check
    cached = run(model, num_blocks=64, budget=24, caching=True, rounds=2)
    check(cached)
    assert all(request.num_hit_tokens >= 32 for request in cached.requests[len(PROMPTS) :])


def test_preempted(model_and_check: ModelAndCheck) -> None:
    model, check = model_and_check
    preempted = run(model, num_blocks=12, budget=40, caching=True)
    check(preempted)
    assert sum(request.num_preemptions for request in preempted.requests) > 0
