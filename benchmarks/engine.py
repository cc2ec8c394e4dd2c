"""The whole engine on the real model, against the limits of the machine in the same run.

Decode:  one stream's ITL against the time that reading its weights (in the dtype they are stored in) takes at the
         measured bandwidth, attention apart. Limit to hold: 1.15.
Prefill: the rate of a 1,600-token prompt, counting the operations of the linear layers and of causal attention, as a
         share of the float32 GEMM rate that torch reaches. Limit to hold: 0.75.
Prefix:  TTFT of a 32-token question behind a cached 2,000-token prefix against the cold one. Limit to hold: 0.10.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import sys
from pathlib import Path

import torch
from machine import gemm_rate, read_bandwidth

from cudaprefill import LLM, SamplingParams
from cudaprefill.models import default_model_path, read_model_config
from cudaprefill.models.config import ModelConfig

DECODE_CONTEXT = 32
DECODE_TOKENS = 128
PREFILL_TOKENS = 1600
PREFIX_TOKENS = 2000
QUESTION_TOKENS = 32


def linear_parameters(config: ModelConfig) -> int:
    """Weights that every token is multiplied with, the LM head apart."""
    heads = config.num_q_heads + 2 * config.num_kv_heads
    attention = config.hidden_size * config.head_size * (heads + config.num_q_heads)
    return config.num_layers * (attention + 3 * config.hidden_size * config.intermediate_size)


def prefill_operations(config: ModelConfig, tokens: int) -> float:
    """Of one prompt: linear layers of all tokens, causal attention, one row of logits."""
    pairs = tokens * (tokens + 1) / 2
    attention = 4 * config.head_size * config.num_q_heads * config.num_layers * pairs
    return 2 * linear_parameters(config) * tokens + attention + 2 * config.hidden_size * config.vocab_size


def fresh_prompt(length: int, vocab_size: int) -> list[int]:
    """Random tokens, so that nothing is cached by accident."""
    return [random.randrange(10, vocab_size) for _ in range(length)]


def measure_decode(llm: LLM, config: ModelConfig, repeats: int) -> dict[str, float]:
    params = SamplingParams(temperature=0, max_tokens=DECODE_TOKENS, ignore_eos=True)
    itls, bandwidths = [], []
    weight_bytes = 4 * (linear_parameters(config) + config.hidden_size * config.vocab_size)
    for _ in range(repeats):
        bandwidths.append(read_bandwidth(weight_bytes, repeats=5))
        metrics = llm.generate([fresh_prompt(DECODE_CONTEXT, config.vocab_size)], params)[0].metrics
        assert metrics is not None
        itls.append(statistics.median(metrics.itl))
    bandwidth = statistics.median(bandwidths)
    itl = statistics.median(itls)
    return {
        "itl_ms": itl * 1e3,
        "weight_bytes": weight_bytes,
        "bandwidth_GB_s": bandwidth / 1e9,
        "weights_ms": weight_bytes / bandwidth * 1e3,
        "ratio": itl / (weight_bytes / bandwidth),
    }


def measure_prefill(llm: LLM, config: ModelConfig, repeats: int) -> dict[str, float]:
    params = SamplingParams(temperature=0, max_tokens=1)
    ttfts, rates = [], []
    for _ in range(repeats):
        rates.append(gemm_rate())
        metrics = llm.generate([fresh_prompt(PREFILL_TOKENS, config.vocab_size)], params)[0].metrics
        assert metrics is not None
        assert metrics.ttft is not None
        ttfts.append(metrics.ttft)
    ttft, rate = statistics.median(ttfts), statistics.median(rates)
    reached = prefill_operations(config, PREFILL_TOKENS) / ttft
    return {
        "ttft_ms": ttft * 1e3,
        "tokens_s": PREFILL_TOKENS / ttft,
        "GFLOP_s": reached / 1e9,
        "gemm_GFLOP_s": rate / 1e9,
        "ratio": reached / rate,
    }


def measure_prefix(llm: LLM, config: ModelConfig, repeats: int) -> dict[str, float]:
    params = SamplingParams(temperature=0, max_tokens=1)
    cold, hit = [], []
    for _ in range(repeats):
        prefix = fresh_prompt(PREFIX_TOKENS, config.vocab_size)
        for ttfts in (cold, hit):
            metrics = llm.generate([prefix + fresh_prompt(QUESTION_TOKENS, config.vocab_size)], params)[0].metrics
            assert metrics is not None
            assert metrics.ttft is not None
            ttfts.append(metrics.ttft)
    return {
        "cold_ms": statistics.median(cold) * 1e3,
        "hit_ms": statistics.median(hit) * 1e3,
        "ratio": statistics.median(hit) / statistics.median(cold),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--budget", type=int, default=512, help="token budget of a step")
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    flags = parser.parse_args()
    config = read_model_config(default_model_path())
    with LLM(max_num_batched_tokens=flags.budget) as llm:
        print(llm.info)
        figures = {
            "decode": measure_decode(llm, config, flags.repeats),
            "prefill": measure_prefill(llm, config, flags.repeats),
            "prefix": measure_prefix(llm, config, flags.repeats),
        }
        setting = {"kernels": llm.info.kernels, "threads": llm.info.threads, "budget": flags.budget}
    decode, prefill, prefix = figures["decode"], figures["prefill"], figures["prefix"]
    print(
        f"decode   ITL {decode['itl_ms']:.2f} ms, reading {decode['weight_bytes'] / 1e6:.0f} MB at "
        f"{decode['bandwidth_GB_s']:.1f} GB/s takes {decode['weights_ms']:.2f} ms: "
        f"{decode['ratio']:.3f} (goal: at most 1.15)"
    )
    print(
        f"prefill  {PREFILL_TOKENS} tokens in {prefill['ttft_ms']:.0f} ms = {prefill['tokens_s']:.0f} tok/s, "
        f"{prefill['GFLOP_s']:.0f} GFLOP/s of torch's {prefill['gemm_GFLOP_s']:.0f}: "
        f"{prefill['ratio']:.3f} (goal: at least 0.75)"
    )
    print(
        f"prefix   TTFT {prefix['cold_ms']:.0f} ms cold, {prefix['hit_ms']:.1f} ms behind {PREFIX_TOKENS} cached "
        f"tokens: {prefix['ratio']:.3f} (goal: at most 0.10)"
    )
    if flags.json:
        flags.json.write_text(json.dumps({**setting, "torch": torch.__version__, **figures}, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
