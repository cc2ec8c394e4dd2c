"""Equal work, equal result: chunked, cached and preempted runs of real models give the logits of one shot."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from cudaprefill.engine.engine import Engine
from cudaprefill.engine.kv_cache import KVCache
from cudaprefill.engine.model_runner import ModelRunner
from cudaprefill.engine.request import Request
from cudaprefill.engine.sampler import RowState, Sampler, SamplerOutput
from cudaprefill.engine.scheduler import Scheduler
from cudaprefill.engine.scheduler_config import SchedulerConfig
from cudaprefill.models import Decoder, load_model
from cudaprefill.sampling_params import SamplingParams
from tests.engine.harness import letters, make_request, pool_is_idle, run_to_end
from tests.models.tiny import save_tiny_model

TOLERANCE = 1e-4
NUM_TOKENS = 24
PARAMS = SamplingParams(temperature=0, max_tokens=NUM_TOKENS, ignore_eos=True, detokenize=False)
SHARED = [(7 * token) % 47 + 1 for token in range(40)]
PROMPTS = [SHARED + [number + 1] * (3 + 5 * number) for number in range(4)]


class RecordingSampler(Sampler):
    """Keeps, with every row of logits, the context that it continues."""

    def __init__(self) -> None:
        self.seen: list[tuple[tuple[int, ...], Tensor]] = []

    def sample(self, logits: Tensor, outputs: Sequence[RowState]) -> SamplerOutput:
        for row, state in outputs:
            self.seen.append(((*state.prompt_token_ids, *state.output_token_ids), logits[row].clone()))
        return super().sample(logits, outputs)


@pytest.fixture(scope="module", params=["llama", "mistral", "qwen2", "qwen3"])
def model_and_reference(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Decoder, Any]:
    folder: Path = tmp_path_factory.mktemp(request.param)
    reference = save_tiny_model(folder, request.param)
    return load_model(folder), reference


@dataclass
class Run:
    sampler: RecordingSampler
    requests: list[Request]


def make_recording_engine(
    model: Decoder,
    *,
    num_blocks: int,
    budget: int,
    caching: bool,
    make_runner: Callable[[Decoder, KVCache], ModelRunner] = ModelRunner,
) -> tuple[Engine, RecordingSampler]:
    """An engine over a KV cache that starts as NaN."""
    config = model.config
    scheduler = Scheduler(
        SchedulerConfig(
            num_blocks=num_blocks,
            max_model_len=config.max_model_len,
            max_num_batched_tokens=budget,
            max_num_seqs=min(4, budget),
            enable_prefix_caching=caching,
        )
    )
    kv_cache = KVCache(config.num_layers, num_blocks, config.num_kv_heads, 16, config.head_size, model.activation_dtype)
    kv_cache.data.fill_(torch.nan)
    engine = Engine(scheduler, make_runner(model, kv_cache), letters(), torch.device("cpu"))
    engine._sampler = sampler = RecordingSampler()
    return engine, sampler


def run(
    model: Decoder,
    *,
    num_blocks: int,
    budget: int,
    caching: bool,
    rounds: int = 1,
    make_runner: Callable[[Decoder, KVCache], ModelRunner] = ModelRunner,
    params: SamplingParams = PARAMS,
) -> Run:
    """The prompts together, `rounds` times over."""
    engine, sampler = make_recording_engine(
        model, num_blocks=num_blocks, budget=budget, caching=caching, make_runner=make_runner
    )
    requests = []
    for round_ in range(rounds):
        batch = [make_request(f"{round_}.{number}", prompt, params) for number, prompt in enumerate(PROMPTS)]
        for request in batch:
            engine.submit(request)
        while engine.has_work():
            engine.step()
            engine.check()
        requests += [member for request in batch for member in (request, *request.siblings)]
    assert pool_is_idle(engine)
    return Run(sampler, requests)


@torch.inference_mode()
def assert_equals_reference(reference: Any, run: Run) -> None:
    """Every row of logits that was sampled from is that of the reference after the same tokens."""
    expected: dict[tuple[int, ...], Tensor] = {}
    for request in run.requests:
        whole = [*request.prompt_token_ids, *request.output_token_ids]
        logits = reference(torch.tensor([whole])).logits[0]
        expected |= {tuple(whole[: end + 1]): logits[end] for end in range(len(whole))}
    assert len(run.sampler.seen) >= NUM_TOKENS * len(run.requests)
    for context, row in run.sampler.seen:
        assert (row - expected[context]).abs().max() < TOLERANCE


def test_one_shot(model_and_reference: tuple[Decoder, Any]) -> None:
    model, reference = model_and_reference
    assert_equals_reference(reference, run(model, num_blocks=64, budget=512, caching=False))


@pytest.mark.parametrize("budget", [1, 7, 16, 17, 64])
def test_chunked(model_and_reference: tuple[Decoder, Any], budget: int) -> None:
    model, reference = model_and_reference
    assert_equals_reference(reference, run(model, num_blocks=64, budget=budget, caching=False))


def test_cached(model_and_reference: tuple[Decoder, Any]) -> None:
    model, reference = model_and_reference
    cached = run(model, num_blocks=64, budget=24, caching=True, rounds=2)
    assert_equals_reference(reference, cached)
    assert all(request.num_hit_tokens >= 32 for request in cached.requests[len(PROMPTS) :])


@pytest.mark.parametrize("caching", [False, True])
def test_preempted(model_and_reference: tuple[Decoder, Any], caching: bool) -> None:
    model, reference = model_and_reference
    preempted = run(model, num_blocks=12, budget=40, caching=caching)
    assert_equals_reference(reference, preempted)
    assert sum(request.num_preemptions for request in preempted.requests) > 0


@pytest.mark.parametrize("family", ["gemma2", "gemma3_text", "phi3", "mixtral", "qwen3_moe"])
def test_families_whose_layers_differ(tmp_path: Path, family: str) -> None:
    """Chunked, cached, and preempted: windows in some layers, two rotary embeddings, experts."""
    reference = save_tiny_model(tmp_path, family)
    model = load_model(tmp_path)
    assert_equals_reference(reference, run(model, num_blocks=64, budget=17, caching=False))
    cached = run(model, num_blocks=64, budget=24, caching=True, rounds=2)
    assert_equals_reference(reference, cached)
    assert all(request.num_hit_tokens >= 32 for request in cached.requests[len(PROMPTS) :])
    preempted = run(model, num_blocks=12, budget=40, caching=True)
    assert_equals_reference(reference, preempted)
    assert sum(request.num_preemptions for request in preempted.requests) > 0


def test_forked(model_and_reference: tuple[Decoder, Any]) -> None:
    """Completions of one prompt go apart in a block that they share, so it is copied before it is written."""
    model, reference = model_and_reference
    params = SamplingParams(n=4, temperature=50.0, seed=1, max_tokens=NUM_TOKENS, ignore_eos=True, detokenize=False)
    forked = run(model, num_blocks=64, budget=40, caching=True, params=params)
    assert_equals_reference(reference, forked)
    for lead in forked.requests[::4]:
        assert len({tuple(member.output_token_ids) for member in (lead, *lead.siblings)}) == 4


@pytest.mark.parametrize("num_cached", [0, 48])
@pytest.mark.parametrize("budget", [1, 15, 16, 17, 63, 64, 256])
def test_a_prompt_of_200_gives_the_logits_of_one_shot_at_every_budget(
    model_and_reference: tuple[Decoder, Any], budget: int, num_cached: int
) -> None:
    model, reference = model_and_reference
    prompt = [(11 * token) % 47 + 1 for token in range(200)]
    one = SamplingParams(temperature=0, max_tokens=1, ignore_eos=True, detokenize=False)
    engine, sampler = make_recording_engine(model, num_blocks=16, budget=budget, caching=True)
    if num_cached:
        engine.submit(make_request("first", prompt[: num_cached + 1], one))
        run_to_end(engine)
    sampler.seen.clear()
    request = make_request("r", prompt, one)
    engine.submit(request)
    steps = 0
    while engine.has_work():
        engine.step()
        steps += 1
    assert (request.num_hit_tokens, steps) == (num_cached, -(-(200 - num_cached) // budget))
    ((context, row),) = sampler.seen
    assert list(context) == prompt
    with torch.inference_mode():
        expected = reference(torch.tensor([prompt])).logits[0, -1]
    assert (row - expected).abs().max() < TOLERANCE
