"""What benchmarks/engine.py counts, against what a model does."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from torch import Tensor

from benchmarks.engine import prefill_parts, weight_bytes
from benchmarks.prefill_roofline import Part, Prompt, Roofline, markdown, parts_of
from cudaprefill.models import Decoder, load_model
from cudaprefill.models.linear import CpuLinear
from cudaprefill.observe.step_profiler import ProfiledStep
from tests.models.paged import PagedRunner
from tests.models.tiny import random_tokens, save_tiny_model

NUM_TOKENS = 30


def counted_operations(decoder: Decoder) -> int:
    """Of the products with matrices in one prompt, those of experts apart."""
    operations = []

    class CountingLinear(CpuLinear):
        def __call__(self, x: Tensor, weight: Any, bias: Any) -> Tensor:
            operations.append(2 * x.shape[0] * weight.numel())
            return super().__call__(x, weight, bias)

        def gated(self, x: Tensor, gate_up: Any, bias: Any, activation: str) -> Tensor:
            operations.append(2 * x.shape[0] * gate_up.numel())
            return super().gated(x, gate_up, bias, activation)

    decoder._linear = CountingLinear()
    PagedRunner(decoder).step(chunks={"a": random_tokens(NUM_TOKENS)}, sampled=["a"])
    return sum(operations)


@pytest.mark.parametrize("family", ["llama", "mixtral", "qwen3_moe"])
def test_operations_of_a_prompt_are_those_that_a_model_does(tmp_path: Path, family: str) -> None:
    save_tiny_model(tmp_path, family)
    decoder = load_model(tmp_path)
    parts = prefill_parts(decoder.config, NUM_TOKENS)
    products = sum(count for name, count in parts.items() if name.startswith(("linear", "gate")) or name == "logits")
    assert counted_operations(decoder) == products
    pairs = NUM_TOKENS * (NUM_TOKENS + 1) // 2  # of a query and a key, in each head of all layers but the last
    num_layers, heads, size = decoder.config.num_layers, decoder.config.num_q_heads, decoder.config.head_size
    assert parts["attention of chunks"] == 4 * size * heads * pairs * (num_layers - 1)


def test_a_decode_step_reads_the_experts_that_a_token_chooses(tmp_path: Path) -> None:
    save_tiny_model(tmp_path, "mixtral")  # of 5 experts 2
    decoder = load_model(tmp_path)

    def call(function: Callable[[Any], int]) -> Future[int]:
        told: Future[int] = Future()
        told.set_result(function(SimpleNamespace(model_runner=SimpleNamespace(model=decoder))))
        return told

    read = decoder.weights.lm_head.nbytes  # type: ignore[union-attr]
    for layer in decoder.weights.layers:
        read += sum(matrix.nbytes for matrix in (layer.qkv, layer.o, layer.router))  # type: ignore[union-attr]
        read += (layer.gate_up.nbytes + layer.down.nbytes) * 2 // 5  # type: ignore[union-attr]
    assert weight_bytes(SimpleNamespace(_engine=SimpleNamespace(call=call))) == read  # type: ignore[arg-type]


def test_the_parts_of_a_roofline_are_the_whole_time_and_all_operations(tmp_path: Path) -> None:
    save_tiny_model(tmp_path, "llama")
    config = load_model(tmp_path).config
    steps = [
        ProfiledStep(0, 0, 20, 0.5, {"forward: linear qkv": 0.3, "forward: norms": 0.199, "other": 0.001}),
        ProfiledStep(0, 0, 10, 0.3, {"forward: linear qkv": 0.2, "forward: norms": 0.1}),
    ]
    parts = parts_of(steps, config, NUM_TOKENS)
    assert [part.name for part in parts] == ["linear qkv", "norms", "all else"]
    assert sum(part.seconds for part in parts) == pytest.approx(0.8)
    assert sum(part.operations for part in parts) == sum(prefill_parts(config, NUM_TOKENS).values())


def test_a_roofline_tells_rates_of_parts_that_compute() -> None:
    short = Prompt(100, [Part("linear o", 30e9, 0.1), Part("norms", 0.0, 0.1), Part("all else", 2e6, 0.05)])
    long = Prompt(300, [Part("linear o", 90e9, 0.2), Part("all else", 6e6, 0.1)])
    found = Roofline("2026-01-02", {"cpu": "A CPU"}, "some weights", [590e9, 610e9], [short, long])
    lines = markdown(found).splitlines()
    assert lines[0] == "2026-01-02, A CPU, some weights. The peak was 590 to 610 GFLOP/s."
    assert lines[4:] == [
        "| linear o | 30 | 100 | 300 | 50% | 90 | 200 | 450 | 75% |",
        "| norms |  | 100 |  |  |  |  |  |  |",
        "| all else |  | 50 |  |  |  | 100 |  |  |",
        "| in all | 30 | 250 | 120 | 20% | 90 | 300 | 300 | 50% |",
        "| tokens a second |  | 400 |  |  |  | 1,000 |  |  |",
    ]


def test_a_roofline_is_read_as_it_was_written(tmp_path: Path) -> None:
    prompt = Prompt(100, [Part("linear o", 30e9, 0.1), Part("all else", 0.0, 0.1)])
    found = Roofline("2026-01-02", {"cpu": "A CPU", "threads": 2}, "some weights", [590e9, 610e9], [prompt])
    found.write(tmp_path / "result.json")
    assert Roofline.read(tmp_path / "result.json") == found
