"""Decode steps as graphs give what eager steps give, whatever is left in the padding.

On a CPU a tape stands in for the capture: it runs the same ops on the same tensors again, and nothing of the Python.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from cudaprefill.engine import cuda_graphs
from cudaprefill.engine.batch import Batch
from cudaprefill.engine.cuda_graphs import Capture, CudaGraphs, DecodeGraphRunner, graph_sizes
from cudaprefill.engine.dry_run import DryRun
from cudaprefill.engine.kv_cache import KVCache
from cudaprefill.engine.model_runner import ModelRunner
from cudaprefill.engine.schedule import BatchArrays
from cudaprefill.models.decoder import Decoder
from tests.cuda.backends import backend_of_ops
from tests.cuda.random_steps import BLOCK_SIZE, MAX_MODEL_LEN, POISON, RandomSteps, small_decoder
from tests.cuda.tape import Tape

NUM_BLOCKS = 160
MAX_NUM_SEQS = 11


class CountingDecoder(Decoder):
    """Counts how often its Python runs."""

    num_forwards = 0

    def forward(self, batch: Batch, kv_cache: KVCache, *, sampled_only: bool = False) -> Tensor:
        self.num_forwards += 1
        return super().forward(batch, kv_cache, sampled_only=sampled_only)


def kv_cache_of(model: Decoder) -> KVCache:
    """Every slot is NaN until it is written."""
    config = model.config
    shape = (config.num_layers, NUM_BLOCKS, config.num_kv_heads, BLOCK_SIZE, config.head_size)
    kv_cache = KVCache(*shape, model.activation_dtype, model.device)
    kv_cache.data.fill_(torch.nan)
    return kv_cache


@dataclass
class Pair:
    """An eager runner and one with graphs, each with a KV cache of its own."""

    eager: ModelRunner
    graphed: DecodeGraphRunner
    tolerance: float  # of the root of the sum of squares

    @classmethod
    def of(cls, model: Decoder, capture: Capture, tolerance: float = 1e-5) -> Pair:
        graphed = DecodeGraphRunner(model, kv_cache_of(model), MAX_NUM_SEQS, MAX_MODEL_LEN, capture)
        return cls(ModelRunner(model, kv_cache_of(model)), graphed, tolerance)

    def run(self, arrays: BatchArrays) -> list[int]:
        """The step's greedy tokens, after both runners gave the same logits and wrote the same KV."""
        device = self.eager.kv_cache.data.device
        expected = self.eager.run(Batch.from_arrays(arrays, device))
        logits = self.graphed.run(Batch.from_arrays(arrays, device))
        self.assert_close(logits, expected)
        kv, expected_kv = self.graphed.kv_cache.data, self.eager.kv_cache.data
        assert torch.equal(kv.isnan(), expected_kv.isnan())
        self.assert_close(kv.nan_to_num(), expected_kv.nan_to_num())
        return expected.argmax(-1).tolist()

    def assert_close(self, actual: Tensor, expected: Tensor) -> None:
        assert actual.shape == expected.shape
        assert (actual - expected).norm() <= self.tolerance * expected.norm()


def run_random_steps(pair: Pair, seed: int, num_steps: int) -> None:
    """Contexts begin in a chunk beside decodes, then decode in steps of any number of requests, some of them forks."""
    steps, choose = RandomSteps(seed, NUM_BLOCKS), random.Random(seed)
    steps.append(pair.run(steps.step(0, chunk_lengths=[choose.randint(1, 60) for _ in range(MAX_NUM_SEQS)])))
    for number in range(num_steps):
        if number % 10 == 9:
            arrays = steps.step(choose.randint(1, 4), chunk_lengths=[choose.randint(1, 60)])
        else:
            num_decodes = choose.randint(1, MAX_NUM_SEQS)
            arrays = steps.step(num_decodes, num_forks=choose.randint(0, min(2, num_decodes)))
        steps.append(pair.run(arrays))


@pytest.fixture(params=range(2))
def seed(request: pytest.FixtureRequest) -> int:
    return request.param


def test_logits_and_kv_of_random_steps_are_those_of_eager_ones(seed: int) -> None:
    run_random_steps(Pair.of(small_decoder(), Tape.capture), seed, num_steps=40)


def test_they_are_with_the_kernels_of_the_gpu() -> None:
    with backend_of_ops("emulated"):
        model = small_decoder(torch.bfloat16)
        run_random_steps(Pair.of(model, Tape.capture, tolerance=0.03), seed=0, num_steps=12)


def test_what_an_earlier_step_left_in_the_padding_changes_nothing(monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    """The worst that may be left: NaN to compute with, a slot and a context of a request that goes on."""
    pair = Pair.of(small_decoder(), Tape.capture)
    inputs = pair.graphed._inputs
    take_inputs = pair.graphed._take_inputs

    def take_inputs_over_poison(batch: Batch, size: int) -> None:
        inputs.token_ids.fill_(POISON)
        inputs.position_ids.fill_(MAX_MODEL_LEN - 1)
        inputs.slot_mapping.copy_(batch.slot_mapping[:1].expand(MAX_NUM_SEQS))
        inputs.context_lens.copy_(batch.context_lens[:1].expand(MAX_NUM_SEQS))
        inputs.block_table.fill_(-1)
        take_inputs(batch, size)

    monkeypatch.setattr(pair.graphed, "_take_inputs", take_inputs_over_poison)
    run_random_steps(pair, seed, num_steps=30)


def test_decodes_run_no_python_of_the_model_and_all_else_does(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda_graphs, "LARGEST_GRAPH", 4)
    plain = small_decoder()
    model = CountingDecoder(plain.config, plain.weights, plain.rope_tables)
    runner = DecodeGraphRunner(model, kv_cache_of(model), MAX_NUM_SEQS, MAX_MODEL_LEN, Tape.capture)
    assert model.num_forwards == len([1, 2, 4])
    steps = RandomSteps(0, NUM_BLOCKS)

    def forwards_of(arrays: BatchArrays) -> int:
        before = model.num_forwards
        steps.append(runner.run(Batch.from_arrays(arrays, torch.device("cpu"))).argmax(-1).tolist())
        return model.num_forwards - before

    assert forwards_of(steps.step(0, chunk_lengths=[20] * 7)) == 1
    assert [forwards_of(steps.step(number)) for number in (1, 2, 3, 4)] == [0, 0, 0, 0]
    assert forwards_of(steps.step(5)) == 1
    assert forwards_of(steps.step(2, chunk_lengths=[3])) == 1


def test_a_capture_touches_no_kv() -> None:
    model = small_decoder()
    kv_cache = kv_cache_of(model)
    DecodeGraphRunner(model, kv_cache, MAX_NUM_SEQS, MAX_MODEL_LEN, Tape.capture)
    assert kv_cache.data.isnan().all()


@pytest.mark.parametrize("emulated", [False, True])
def test_before_there_is_a_kv_cache_graphs_are_captured_on_one_block(emulated: bool) -> None:
    with backend_of_ops("emulated") if emulated else nullcontext():
        model = small_decoder(torch.bfloat16 if emulated else torch.float32)
        dry_run = DryRun(model, 40, 3, MAX_MODEL_LEN, BLOCK_SIZE, model.activation_dtype)
        dry_run.run_largest_step()
        captured = dry_run.capture_graphs(Tape.capture)
    assert captured.kv_cache.data.shape[:3] == (1, 2, 1)
    assert [tuple(k_cache.shape) for k_cache, *_ in captured.kv_cache.layers] == [(16, 2, BLOCK_SIZE, 64)] * 2


def test_sizes_double_up_to_the_most_requests_or_where_launches_no_longer_matter() -> None:
    assert graph_sizes(1) == [1]
    assert graph_sizes(3) == [1, 2, 3]
    assert graph_sizes(8) == [1, 2, 4, 8]
    assert graph_sizes(11) == [1, 2, 4, 8, 11]
    assert graph_sizes(2**20) == [1, 2, 4, 8, 16, 32, 64, 128, 256, 512]


def test_an_engine_on_graphs_gives_the_logits_of_transformers(tmp_path) -> None:
    pytest.importorskip("transformers")
    pytest.importorskip("tokenizers")
    from cudaprefill.models import load_model
    from tests.engine.test_equality import assert_equals_reference, run
    from tests.models.tiny import save_tiny_model

    reference = save_tiny_model(tmp_path, "qwen2")
    model = load_model(tmp_path)

    def make_runner(model: Decoder, kv_cache: KVCache) -> ModelRunner:
        return DecodeGraphRunner(model, kv_cache, 4, model.config.max_model_len, Tape.capture)

    preempted = run(model, num_blocks=12, budget=40, caching=True, rounds=2, make_runner=make_runner)
    assert_equals_reference(reference, preempted)
    assert sum(request.num_preemptions for request in preempted.requests) > 0


@pytest.fixture
def device() -> Iterator[torch.device]:
    if not torch.cuda.is_available():
        pytest.skip("there is no CUDA device")
    yield torch.device("cuda")
    torch.cuda.set_sync_debug_mode("default")


@pytest.mark.gpu
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-4), (torch.bfloat16, 0.03)])
def test_captured_graphs_give_what_eager_steps_give(device: torch.device, dtype: torch.dtype, tolerance: float) -> None:
    pair = Pair.of(small_decoder(dtype, "cuda"), CudaGraphs(device).capture, tolerance)
    run_random_steps(pair, seed=0, num_steps=40)


@pytest.mark.gpu
def test_nothing_waits_for_the_device_between_schedule_and_sampling(device: torch.device) -> None:
    model = small_decoder(torch.bfloat16, "cuda")
    runner = DecodeGraphRunner(model, kv_cache_of(model), MAX_NUM_SEQS, MAX_MODEL_LEN, CudaGraphs(device).capture)
    steps = RandomSteps(0, NUM_BLOCKS)
    for arrays in (steps.step(0, chunk_lengths=[20] * 7), steps.step(5, num_forks=1), steps.step(7)):
        torch.cuda.set_sync_debug_mode("error")
        logits = runner.run(Batch.from_arrays(arrays, device))
        torch.cuda.set_sync_debug_mode("default")
        steps.append(logits.argmax(-1).tolist())
