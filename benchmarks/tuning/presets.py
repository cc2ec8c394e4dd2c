"""What each preset is good at: a long prompt alone, the same beside four chats, and requests all at once."""

from __future__ import annotations

import argparse
import statistics
from typing import Any

import numpy as np

from benchmarks.tuning.scenes import (
    BATCH,
    BATCH_PROMPT,
    BATCH_TOKENS,
    LARGEST_BUDGET,
    LONG,
    at_once,
    chats_and_a_long_prompt,
    undisturbed_ttft,
)
from cudaprefill import LLM
from cudaprefill.config import flags_of
from cudaprefill.presets import PRESETS, preset_settings


def add_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--repeats", type=int, default=3)


def measure(flags: argparse.Namespace) -> dict[str, Any]:
    samples: dict[str, dict[str, list[float]]] = {
        name: {"alone_s": [], "ttft_s": [], "itl_s": [], "batch_s": []} for name in PRESETS
    }
    with LLM(max_num_batched_tokens=LARGEST_BUDGET, max_num_seqs=BATCH) as llm:
        print(llm.info)
        undisturbed_ttft(llm, 1)
        for repeat in range(flags.repeats):
            for number, (name, row) in enumerate(samples.items()):
                settings = preset_settings(name, "cpu")
                llm.change_settings(
                    max_num_batched_tokens=settings["max_num_batched_tokens"], itl_target_ms=settings["itl_target_ms"]
                )
                seed = 1000 * (1 + number) + 100 * repeat
                row["alone_s"].append(undisturbed_ttft(llm, seed + 50))
                gaps, ttft = chats_and_a_long_prompt(llm, seed)
                row["itl_s"] += gaps
                row["ttft_s"].append(ttft)
                row["batch_s"].append(at_once(llm, seed + 60))
    rows = []
    for name, row in samples.items():
        figures = {
            "preset": name,
            "flags": flags_of(preset_settings(name, "cpu")),
            "alone_s": statistics.median(row["alone_s"]),
            "ttft_s": statistics.median(row["ttft_s"]),
            "itl_p50_ms": float(np.percentile(row["itl_s"], 50)) * 1e3,
            "itl_p99_ms": float(np.percentile(row["itl_s"], 99)) * 1e3,
            "batch_s": statistics.median(row["batch_s"]),
        }
        rows.append(figures)
        print(
            f"{name:5} {LONG} tokens alone {figures['alone_s']:.2f} s, beside four chats {figures['ttft_s']:.2f} s "
            f"with their ITL p50 {figures['itl_p50_ms']:.0f} ms, p99 {figures['itl_p99_ms']:.0f} ms; "
            f"{BATCH} x ({BATCH_PROMPT}, {BATCH_TOKENS}) {figures['batch_s']:.2f} s"
        )
    return {"presets": rows}
