"""Four chats stream while a prompt of 3,200 tokens arrives: the gaps between the chats' tokens until its first token,
and its TTFT beside that of the same prompt alone, with fixed budgets and with targets."""

from __future__ import annotations

import argparse
import statistics
from typing import Any

import numpy as np

from benchmarks.tuning.scenes import (
    DEFAULT_BUDGET,
    LARGEST_BUDGET,
    chats_and_a_long_prompt,
    undisturbed_ttft,
)
from cudaprefill import LLM
from cudaprefill.config import parse_itl_target
from cudaprefill.protocol.itl_target import itl_target_text


def add_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--targets", type=lambda text: [*map(parse_itl_target, text.split(","))], default="auto,120", metavar="MS,..."
    )
    parser.add_argument(
        "--budgets", type=lambda text: [*map(int, text.split(","))], default="64,128,512,2048", metavar="N,..."
    )
    parser.add_argument("--repeats", type=int, default=3)


def measure(flags: argparse.Namespace) -> dict[str, Any]:
    settings: list[dict[str, Any]] = [
        *({"max_num_batched_tokens": budget, "itl_target_ms": 0.0} for budget in flags.budgets),
        *({"max_num_batched_tokens": DEFAULT_BUDGET, "itl_target_ms": target} for target in flags.targets),
    ]
    rows = []
    with LLM(max_num_batched_tokens=LARGEST_BUDGET, max_num_seqs=16) as llm:
        print(llm.info)
        undisturbed_ttft(llm, 1)
        for number, chosen in enumerate(settings):
            gaps: list[float] = []
            alone, ttfts = [], []
            for repeat in range(flags.repeats):
                seed = 1000 * (number + 1) + 100 * repeat
                llm.change_settings(max_num_batched_tokens=DEFAULT_BUDGET, itl_target_ms=0.0)
                alone.append(undisturbed_ttft(llm, seed + 50))
                llm.change_settings(**chosen)
                more, ttft = chats_and_a_long_prompt(llm, seed)
                gaps += more
                ttfts.append(ttft)
            row = {
                **chosen,
                "itl_p50_ms": float(np.percentile(gaps, 50)) * 1e3,
                "itl_p99_ms": float(np.percentile(gaps, 99)) * 1e3,
                "itl_max_ms": max(gaps) * 1e3,
                "ttft_s": statistics.median(ttfts),
                "alone_s": statistics.median(alone),
                "ratio": statistics.median(ttfts) / statistics.median(alone),
            }
            rows.append(row)
            target = itl_target_text(chosen["itl_target_ms"])
            name = f"target {target}" if chosen["itl_target_ms"] else f"budget {row['max_num_batched_tokens']}"
            print(
                f"{name:19} chats' ITL p50 {row['itl_p50_ms']:6.1f}, p99 {row['itl_p99_ms']:6.1f}, "
                f"max {row['itl_max_ms']:6.1f} ms; TTFT {row['ttft_s']:.2f} s, {row['ratio']:.2f} times as alone"
            )
    return {"settings": rows}
