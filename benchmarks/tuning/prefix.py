"""A question behind shared texts of several lengths: its TTFT when the text is new, and when it is cached."""

from __future__ import annotations

import argparse
import statistics
from typing import Any

from benchmarks.tuning.scenes import prompt, ttft_alone
from cudaprefill import LLM

LENGTHS = (250, 500, 1000, 2000, 4000)  # tokens of the text
QUESTION = 32


def add_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--repeats", type=int, default=3)


def measure(flags: argparse.Namespace) -> dict[str, Any]:
    rows = []
    with LLM() as llm:
        print(llm.info)
        ttft_alone(llm, prompt(LENGTHS[-1], 1))
        for length in LENGTHS:
            cold, cached = [], []
            for repeat in range(flags.repeats):
                text = prompt(length, 1000 * repeat + length)
                for number, times in enumerate((cold, cached)):
                    times.append(ttft_alone(llm, text + prompt(QUESTION, 10 * repeat + number)))
            row = {"tokens": length, "cold_s": statistics.median(cold), "cached_s": statistics.median(cached)}
            rows.append(row)
            print(
                f"TTFT of {QUESTION} tokens behind {length:5,}: {row['cold_s'] * 1e3:6.0f} ms cold, "
                f"{row['cached_s'] * 1e3:5.1f} ms cached: 1 / {row['cold_s'] / row['cached_s']:.1f}"
            )
    return {"question": QUESTION, "texts": rows}
