"""The whole engine on the real model, against the limits of the machine in the same run.

    python -m benchmarks.engine [--dtype float32] [--json FILE]

Decode:  one stream's ITL against the time that reading its weights (as they are kept in memory) takes at the measured
         bandwidth, attention apart. Limit to hold with float32 weights: 1.15.
Prefill: the rate of a 1,600-token prompt, counting the operations of the linear layers and of causal attention, as a
         share of the float32 GEMM rate that torch reaches. Limit to hold: 0.75.
Prefix:  TTFT of a 32-token question behind a cached 2,000-token prefix against the cold one. Limit to hold: 0.10.
"""

from __future__ import annotations

import argparse
import random
import statistics
import sys
from dataclasses import dataclass
from pathlib import Path

from benchmarks.figures import Figure, write_figures
from benchmarks.machine import gemm_rate, read_bandwidth
from cudaprefill import LLM, SamplingParams
from cudaprefill.models import default_model_path, read_model_config
from cudaprefill.models.block_matrix import BlockMatrix, Matrix
from cudaprefill.models.config import ExpertsConfig, ModelConfig
from cudaprefill.models.decoder import Decoder
from cudaprefill.models.weights import LayerWeights

DECODE_CONTEXT = 32
DECODE_TOKENS = 128
PREFILL_TOKENS = 1600
PREFIX_TOKENS = 2000
QUESTION_TOKENS = 32
READ_BYTES = 512 * 2**20  # to measure the bandwidth with: more than any cache


def linear_parameters(config: ModelConfig) -> int:
    """Weights that every token is multiplied with, the LM head apart: of experts, those of as many as it chooses."""
    return sum(sum(_layer_parameters(config, layer.experts).values()) for layer in config.layers)


def _layer_parameters(config: ModelConfig, experts: ExpertsConfig | None) -> dict[str, int]:
    """By the names that a profile has for their products."""
    hidden, q_size = config.hidden_size, config.head_size * config.num_q_heads
    attention = {
        "linear qkv": hidden * (q_size + 2 * config.head_size * config.num_kv_heads),
        "linear o": hidden * q_size,
    }
    if experts is None:
        size = config.intermediate_size
        return {**attention, "gate, up and activation": 2 * hidden * size, "linear down": hidden * size}
    chosen = 3 * experts.num_chosen * experts.intermediate_size
    return {**attention, "experts": hidden * chosen, "linear router": hidden * experts.num_experts}


def prefill_parts(config: ModelConfig, tokens: int) -> dict[str, float]:
    """Operations of one prompt, by the names that a profile has for them.

    All tokens go through all layers but the last, and causal attention; of the last layer all need K and V, which here
    come with q, and one token needs the rest, as it needs logits.
    """
    *whole, last = (_layer_parameters(config, layer.experts) for layer in config.layers)
    pairs, of_pair = tokens * (tokens + 1) / 2, 4 * config.head_size * config.num_q_heads
    parts = {name: 0.0 for layer in (*whole, last) for name in layer}
    for layer in whole:
        for name, parameters in layer.items():
            parts[name] += 2.0 * parameters * tokens
    for name, parameters in last.items():
        parts[name] += 2.0 * parameters * (tokens if name == "linear qkv" else 1)
    return {
        **parts,
        "attention of chunks": of_pair * len(whole) * pairs,
        "attention of single tokens": of_pair * tokens,
        "logits": 2.0 * config.hidden_size * config.vocab_size,
    }


def prefill_operations(config: ModelConfig, tokens: int) -> float:
    """Of one prompt, in all."""
    return sum(prefill_parts(config, tokens).values())


def fresh_prompt(length: int, vocab_size: int) -> list[int]:
    """Random tokens, so that nothing is cached by accident."""
    return [random.randrange(10, vocab_size) for _ in range(length)]


def weight_bytes(llm: LLM) -> int:
    """What one decode step of one stream reads: all matrices, but of experts those that its token chooses."""

    def of(matrix: Matrix) -> int:
        return matrix.num_bytes if isinstance(matrix, BlockMatrix) else matrix.nbytes

    def of_layer(layer: LayerWeights, experts: ExpertsConfig | None) -> int:
        feed_forward = of(layer.gate_up) + of(layer.down)
        if experts is not None:
            assert layer.router is not None
            feed_forward = feed_forward * experts.num_chosen // experts.num_experts + of(layer.router)
        return of(layer.qkv) + of(layer.o) + feed_forward

    def count(model: Decoder) -> int:
        layers = zip(model.weights.layers, model.config.layers, strict=True)
        return sum(of_layer(weights, layer.experts) for weights, layer in layers) + of(model.weights.lm_head)

    return llm._engine.call(lambda engine: count(engine.model_runner.model)).result()  # type: ignore[arg-type]


@dataclass(frozen=True)
class Decode:
    """One sample a repeat; seconds and bytes a second."""

    num_bytes: int
    itls: list[float]
    bandwidths: list[float]

    @property
    def ratios(self) -> list[float]:
        """ITL over the time that reading takes."""
        pairs = zip(self.itls, self.bandwidths, strict=True)
        return [itl * bandwidth / self.num_bytes for itl, bandwidth in pairs]


def measure_decode(llm: LLM, config: ModelConfig, repeats: int) -> Decode:
    params = SamplingParams(temperature=0, max_tokens=DECODE_TOKENS, ignore_eos=True)
    decode = Decode(weight_bytes(llm), [], [])
    for _ in range(repeats):
        decode.bandwidths.append(read_bandwidth(READ_BYTES, repeats=5))
        metrics = llm.generate([fresh_prompt(DECODE_CONTEXT, config.vocab_size)], params)[0].metrics
        assert metrics is not None
        decode.itls.append(statistics.median(metrics.itl))
    return decode


@dataclass(frozen=True)
class Prefill:
    """One sample a repeat; seconds and operations a second."""

    ttfts: list[float]
    gemm_rates: list[float]
    operations: float

    @property
    def ratios(self) -> list[float]:
        """The rate over that of the matrix product."""
        pairs = zip(self.ttfts, self.gemm_rates, strict=True)
        return [self.operations / ttft / rate for ttft, rate in pairs]


def measure_prefill(llm: LLM, config: ModelConfig, repeats: int) -> Prefill:
    prefill = Prefill([], [], prefill_operations(config, PREFILL_TOKENS))
    for _ in range(repeats):
        prefill.gemm_rates.append(gemm_rate())
        prefill.ttfts.append(ttft(llm, fresh_prompt(PREFILL_TOKENS, config.vocab_size)))
    return prefill


def measure_prefix(llm: LLM, config: ModelConfig, repeats: int) -> tuple[list[float], list[float]]:
    """TTFTs in seconds, cold and behind a cached prefix."""
    cold: list[float] = []
    hit: list[float] = []
    for _ in range(repeats):
        prefix = fresh_prompt(PREFIX_TOKENS, config.vocab_size)
        for ttfts in (cold, hit):
            ttfts.append(ttft(llm, prefix + fresh_prompt(QUESTION_TOKENS, config.vocab_size)))
    return cold, hit


def ttft(llm: LLM, prompt: list[int]) -> float:
    metrics = llm.generate([prompt], SamplingParams(temperature=0, max_tokens=1))[0].metrics
    assert metrics is not None
    assert metrics.ttft is not None
    return metrics.ttft


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--budget", type=int, default=512, help="token budget of a step")
    parser.add_argument("--dtype", default="auto", help="of the weights (default: as stored)")
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    flags = parser.parse_args()
    config = read_model_config(default_model_path())
    with LLM(max_num_batched_tokens=flags.budget, dtype=flags.dtype) as llm:
        print(llm.info)
        info = llm.info
        decode = measure_decode(llm, config, flags.repeats)
        prefill = measure_prefill(llm, config, flags.repeats)
        cold, hit = measure_prefix(llm, config, flags.repeats)
    median = statistics.median
    bandwidth, tokens_s = median(decode.bandwidths), [PREFILL_TOKENS / ttft for ttft in prefill.ttfts]
    ratios = [behind / alone for behind, alone in zip(hit, cold, strict=True)]
    print(
        f"decode   ITL {median(decode.itls) * 1e3:.2f} ms, reading {decode.num_bytes / 1e6:.0f} MB at "
        f"{bandwidth / 1e9:.1f} GB/s takes {decode.num_bytes / bandwidth * 1e3:.2f} ms: {median(decode.ratios):.3f}"
    )
    print(
        f"prefill  {PREFILL_TOKENS} tokens in {median(prefill.ttfts) * 1e3:.0f} ms = {median(tokens_s):.0f} tok/s, "
        f"{prefill.operations / median(prefill.ttfts) / 1e9:.0f} GFLOP/s of torch's "
        f"{median(prefill.gemm_rates) / 1e9:.0f}: {median(prefill.ratios):.3f} (goal: at least 0.75)"
    )
    print(
        f"prefix   TTFT {median(cold) * 1e3:.0f} ms cold, {median(hit) * 1e3:.1f} ms behind {PREFIX_TOKENS} cached "
        f"tokens: {median(ratios):.3f} (goal: at most 0.10)"
    )
    if flags.json:
        figures = [
            Figure("one stream, ITL", "ms", [itl * 1e3 for itl in decode.itls]),
            Figure("one stream, ITL over reading the weights", "x", decode.ratios),
            Figure(f"prefill of {PREFILL_TOKENS} tokens", "tok/s", tokens_s, more_is_better=True),
            Figure("prefill over torch's GEMM", "x", prefill.ratios, more_is_better=True),
            Figure("TTFT behind a cached prefix", "ms", [seconds * 1e3 for seconds in hit]),
            Figure("TTFT behind a cached prefix over cold", "x", ratios),
        ]
        setting = {"kernels": info.kernels, "threads": info.threads, "weights": info.dtype, "budget": flags.budget}
        write_figures(flags.json, figures, setting)
    return 0


if __name__ == "__main__":
    sys.exit(main())
