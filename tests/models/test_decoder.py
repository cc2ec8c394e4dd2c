"""The decoder gives transformers' logits however the tokens of a request are spread over steps."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
from transformers import PreTrainedModel

from cudaprefill.models import Decoder, load_model
from cudaprefill.models.linear import CpuLinear
from tests.models.paged import PagedRunner
from tests.models.tiny import ROPE, random_tokens, reference_logits, save_tiny_model

TOLERANCE = 1e-4

GEMMA3_ROPE = {
    "full_attention": {"rope_type": "linear", "rope_theta": 1e5, "factor": 4.0},
    "sliding_attention": {"rope_type": "default", "rope_theta": 1e3},
}

MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", {}),
    "llama, tied": ("llama", {"tie_word_embeddings": True}),
    "llama, biases": ("llama", {"attention_bias": True, "mlp_bias": True}),
    "llama, linear rope": ("llama", {"rope_parameters": ROPE["linear"]}),
    "llama, llama3 rope": ("llama", {"rope_parameters": ROPE["llama3"]}),
    "llama, yarn rope": ("llama", {"rope_parameters": ROPE["yarn"]}),
    "mistral": ("mistral", {}),
    "mistral, window": ("mistral", {"sliding_window": 20}),
    "qwen2": ("qwen2", {}),
    "qwen2, tied": ("qwen2", {"tie_word_embeddings": True}),
    "qwen2, window": ("qwen2", {"use_sliding_window": True, "sliding_window": 20, "max_window_layers": 0}),
    "qwen2, yarn rope": ("qwen2", {"rope_parameters": ROPE["yarn"]}),
    "qwen2, window in some layers": (
        "qwen2",
        {"use_sliding_window": True, "sliding_window": 20, "max_window_layers": 1},
    ),
    "qwen3": ("qwen3", {}),
    "qwen3, tied": ("qwen3", {"tie_word_embeddings": True}),
    "qwen3, biases": ("qwen3", {"attention_bias": True}),
    "mixtral": ("mixtral", {}),
    "mixtral, window": ("mixtral", {"sliding_window": 20}),
    "qwen3_moe": ("qwen3_moe", {}),
    "qwen3_moe, renormalised": ("qwen3_moe", {"norm_topk_prob": True, "decoder_sparse_step": 2, "mlp_only_layers": []}),
    "gemma2": ("gemma2", {"tie_word_embeddings": True}),
    "gemma2, no caps": ("gemma2", {"attn_logit_softcapping": None, "final_logit_softcapping": None}),
    "gemma3": ("gemma3_text", {"tie_word_embeddings": True}),
    "gemma3, stretched": ("gemma3_text", {"rope_parameters": GEMMA3_ROPE, "attention_bias": True}),
    "phi3": ("phi3", {}),
    "phi3, window": ("phi3", {"sliding_window": 20}),
    "phi3, longrope": ("phi3", {"rope_parameters": ROPE["longrope"]}),
    "phi3, partial": ("phi3", {"rope_parameters": {**ROPE["default"], "partial_rotary_factor": 0.75}}),
}
PROMPT = random_tokens(75)

Pair = tuple[PreTrainedModel, Decoder]


@pytest.fixture(scope="module")
def build(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Pair]:
    def build(family: str, **overrides: Any) -> Pair:
        folder = tmp_path_factory.mktemp(family)
        return save_tiny_model(folder, family, **overrides), load_model(folder)

    return build


@pytest.fixture(scope="module", params=MODELS)
def pair(request: pytest.FixtureRequest, build: Callable[..., Pair]) -> Pair:
    family, overrides = MODELS[request.param]
    return build(family, **overrides)


def assert_same_logits(actual: torch.Tensor, expected: torch.Tensor) -> None:
    assert actual.dtype == torch.float32
    torch.testing.assert_close(actual, expected, rtol=0, atol=TOLERANCE)


def test_one_shot(pair: Pair) -> None:
    reference, decoder = pair
    logits = PagedRunner(decoder).step(chunks={"a": PROMPT})["a"]
    assert_same_logits(logits, reference_logits(reference, PROMPT))


@pytest.mark.parametrize("size", [1, 7, 16, 33, 64])
def test_chunks_of_any_size(pair: Pair, size: int) -> None:
    reference, decoder = pair
    runner = PagedRunner(decoder)
    chunks = [PROMPT[start : start + size] for start in range(0, len(PROMPT), size)]
    logits = torch.cat([runner.step(chunks={"a": chunk})["a"] for chunk in chunks])
    assert_same_logits(logits, reference_logits(reference, PROMPT))


def test_decodes_one_token_at_a_time(pair: Pair) -> None:
    reference, decoder = pair
    runner = PagedRunner(decoder)
    first = runner.step(chunks={"a": PROMPT[:13]})["a"]
    rest = [runner.step(decodes={"a": token})["a"] for token in PROMPT[13:]]
    assert_same_logits(torch.cat([first, *rest]), reference_logits(reference, PROMPT))


@pytest.mark.parametrize("shared_blocks", [1, 3])
def test_a_cached_prefix_is_read_in_place(pair: Pair, shared_blocks: int) -> None:
    reference, decoder = pair
    runner = PagedRunner(decoder)
    runner.step(chunks={"first": PROMPT[:60]})
    cached = runner.share_prefix("first", "second", shared_blocks)
    question = PROMPT[:cached] + random_tokens(20, seed=1)
    logits = runner.step(chunks={"second": question[cached:]})["second"]
    assert_same_logits(logits, reference_logits(reference, question)[cached:])


@pytest.mark.parametrize("seed", range(3))
def test_mixed_steps_of_decodes_and_chunks(pair: Pair, seed: int) -> None:
    """Five requests advance at random, each by chunks through its prompt and then by decodes."""
    reference, decoder = pair
    rng = random.Random(seed)
    runner = PagedRunner(decoder, seed=seed)
    sequences = {str(i): random_tokens(rng.randint(2, 60), seed=100 * seed + i) for i in range(5)}
    prompt_lens = {name: rng.randint(1, len(tokens) - 1) for name, tokens in sequences.items()}
    done = dict.fromkeys(sequences, 0)
    logits: dict[str, list[torch.Tensor]] = {name: [] for name in sequences}
    mixed_steps = 0
    while any(done[name] < len(tokens) for name, tokens in sequences.items()):
        decodes, chunks = {}, {}
        for name, tokens in sequences.items():
            if done[name] == len(tokens) or rng.random() < 0.3:
                continue
            if done[name] < prompt_lens[name]:
                chunks[name] = tokens[done[name] : min(done[name] + rng.randint(1, 20), prompt_lens[name])]
            else:
                decodes[name] = tokens[done[name]]
        if not decodes and not chunks:
            continue
        mixed_steps += bool(decodes) and bool(chunks)
        for name, rows in runner.step(decodes, chunks).items():
            logits[name].append(rows)
            done[name] += rows.shape[0]
    assert mixed_steps > 0
    for name, tokens in sequences.items():
        assert_same_logits(torch.cat(logits[name]), reference_logits(reference, tokens))


@pytest.mark.parametrize("seed", range(2))
def test_sampled_rows_alone(pair: Pair, seed: int) -> None:
    """They are those of a step that computes all rows, and so are the K and V of every token."""
    _, decoder = pair
    rng = random.Random(seed)
    sequences = {name: random_tokens(60, seed=ord(name) + seed) for name in "abcde"}
    whole, alone = PagedRunner(decoder, seed=seed), PagedRunner(decoder, seed=seed)
    lengths = {name: rng.randint(1, 40) for name in "abc"}
    first = {name: sequences[name][:length] for name, length in lengths.items()}
    steps: list[tuple[dict[str, int], dict[str, list[int]], str]] = [
        ({}, first, ""),
        ({"a": 5}, {"c": sequences["c"][lengths["c"] :]}, "a"),
        ({"a": 7, "b": 8}, {"c": [3], "d": sequences["d"], "e": sequences["e"]}, "abce"),
        ({}, {"c": [4], "d": sequences["d"]}, "d"),
        ({"a": 9, "b": 10}, {}, "ab"),
    ]
    for decodes, chunks, sampled in steps:
        expected = whole.step(decodes, chunks)
        logits = alone.step(decodes, chunks, sampled=list(sampled))
        assert list(logits) == list(sampled)
        for name, row in logits.items():
            torch.testing.assert_close(row, expected[name][-1:], rtol=0, atol=TOLERANCE)
        torch.testing.assert_close(alone.kv_cache.data, whole.kv_cache.data, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("sampled", [[], ["b"], ["a", "b"]])
def test_no_other_row_goes_through_the_last_feed_forward(build: Callable[..., Pair], sampled: list[str]) -> None:
    _, decoder = build("llama")
    rows = []

    class CountingLinear(CpuLinear):
        def __call__(self, x: torch.Tensor, weight: Any, bias: Any) -> torch.Tensor:
            rows.extend(x.shape[0] for layer in decoder.weights.layers if weight is layer.down)
            return super().__call__(x, weight, bias)

    decoder._linear = CountingLinear()
    PagedRunner(decoder).step(chunks={"a": PROMPT[:40], "b": PROMPT[:30]}, sampled=sampled)
    assert rows == [70] * (decoder.config.num_layers - 1) + [len(sampled)] * bool(sampled)


@pytest.mark.parametrize(("max_model_len", "length"), [(64, 50), (256, 75)])
def test_longrope_within_and_beyond_the_pretraining(tmp_path: Any, max_model_len: int, length: int) -> None:
    """transformers looks at each sequence, this engine at the longest that it will take."""
    rope = {**ROPE["longrope"], "partial_rotary_factor": 0.75}
    rope |= {name: rope[name][:24] for name in ("short_factor", "long_factor")}
    reference = save_tiny_model(tmp_path, "phi3", rope_parameters=rope, original_max_position_embeddings=64)
    runner = PagedRunner(load_model(tmp_path, max_model_len=max_model_len))
    logits = torch.cat([runner.step(chunks={"a": PROMPT[:20]})["a"], runner.step(chunks={"a": PROMPT[20:length]})["a"]])
    assert_same_logits(logits, reference_logits(reference, PROMPT[:length]))


@pytest.mark.parametrize("head_size", [80, 96, 128, 256])
@pytest.mark.parametrize("heads", [(2, 2), (7, 1), (6, 2)])
def test_head_sizes_and_groups(build: Callable[..., Pair], head_size: int, heads: tuple[int, int]) -> None:
    num_q_heads, num_kv_heads = heads
    sizes = {"num_attention_heads": num_q_heads, "num_key_value_heads": num_kv_heads, "head_dim": head_size}
    reference, decoder = build("llama", hidden_size=84, **sizes)
    runner = PagedRunner(decoder)
    logits = torch.cat([runner.step(chunks={"a": PROMPT[:-1]})["a"], runner.step(decodes={"a": PROMPT[-1]})["a"]])
    assert_same_logits(logits, reference_logits(reference, PROMPT))


@pytest.mark.parametrize("block_size", [16, 32, 64])
def test_block_sizes(build: Callable[..., Pair], block_size: int) -> None:
    reference, decoder = build("qwen3")
    runner = PagedRunner(decoder, block_size=block_size)
    logits = torch.cat([runner.step(chunks={"a": PROMPT[:-1]})["a"], runner.step(decodes={"a": PROMPT[-1]})["a"]])
    assert_same_logits(logits, reference_logits(reference, PROMPT))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_weights_are_computed_in_float32_on_a_cpu(tmp_path: Any, dtype: torch.dtype) -> None:
    reference = save_tiny_model(tmp_path, "qwen2")
    decoder = load_model(tmp_path, dtype=str(dtype).removeprefix("torch."))
    assert (f"torch.{decoder.weight_format}", decoder.activation_dtype) == (str(dtype), torch.float32)
    with torch.no_grad():
        for weight in reference.parameters():
            if weight.dim() == 2:
                weight.copy_(weight.to(dtype))
    logits = PagedRunner(decoder).step(chunks={"a": PROMPT})["a"]
    assert_same_logits(logits, reference_logits(reference, PROMPT))
