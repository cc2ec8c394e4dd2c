"""How much of the KV memory that requests hold is filled with tokens.

    python -m benchmarks.kv_utilisation [--json FILE]

100 requests arrive at once and run to their end through the real scheduler, without a model, over a pool of 131,072
slots. Prompt lengths are log-normal around 400 tokens (sigma 1.2), output lengths around 200 (sigma 0.9), cut so that
prompt plus output lies between 50 and 8,192, as in a chat with some long documents. Compared are our blocks of 16,
memory for max_model_len = 8,192 tokens set aside for each running request, and blocks of one token, the ideal.
The share is averaged over time; every step counts as long as every other.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks.figures import Figure, write_figures
from cudaprefill.engine.request import Request
from cudaprefill.engine.scheduler import Scheduler, SchedulerConfig
from cudaprefill.sampling_params import SamplingParams

NUM_SLOTS = 131_072
MAX_MODEL_LEN = 8192


@dataclass
class Result:
    share: float  # of the held slots, time-averaged
    running: float  # requests, time-averaged
    steps: int


def draw_lengths(num_requests: int, seed: int) -> list[tuple[int, int]]:
    """Prompt and output lengths."""
    random_numbers = np.random.default_rng(seed)
    prompts = random_numbers.lognormal(np.log(400), 1.2, num_requests).astype(int).clip(25, MAX_MODEL_LEN - 25)
    outputs = random_numbers.lognormal(np.log(200), 0.9, num_requests).astype(int).clip(25, MAX_MODEL_LEN - prompts)
    return list(zip(prompts.tolist(), outputs.tolist(), strict=True))


def run(lengths: list[tuple[int, int]], block_size: int) -> Result:
    config = SchedulerConfig(
        num_blocks=NUM_SLOTS // block_size,
        block_size=block_size,
        max_model_len=MAX_MODEL_LEN,
        max_num_batched_tokens=2048,
        max_num_seqs=256,
        enable_prefix_caching=False,
    )
    scheduler = Scheduler(config)
    requests = [
        Request(
            request_id=str(index),
            prompt_token_ids=[index] * num_prompt,
            sampling_params=SamplingParams(max_tokens=num_output),
        )
        for index, (num_prompt, num_output) in enumerate(lengths)
    ]
    for request in requests:
        scheduler.add(request)
    shares = []
    running = []
    while (schedule := scheduler.schedule()) is not None:
        scheduler.commit(schedule, np.zeros(len(schedule.sampled), dtype=np.int64))
        scheduler.end_step(schedule)
        num_tokens = sum(scheduler.table.num_computed(request.row) for request in requests if not request.finished)
        if scheduler.pool.num_used:
            shares.append(num_tokens / (scheduler.pool.num_used * block_size))
            running.append(scheduler.num_running)
    return Result(float(np.mean(shares)), float(np.mean(running)), len(shares))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path, help="write the figures of our blocks to this file")
    args = parser.parse_args()
    lengths = draw_lengths(args.requests, args.seed)
    totals = np.sum(lengths, axis=1)
    print(
        f"{len(lengths)} requests, prompt plus output: median {np.median(totals):.0f}, mean {totals.mean():.0f}, "
        f"{totals.min()} to {totals.max()} tokens"
    )
    for name, block_size in (("blocks of 16", 16), ("8,192 set aside", MAX_MODEL_LEN), ("ideal", 1)):
        result = run(lengths, block_size)
        print(
            f"{name:>16}: {100 * result.share:6.2f} % of the held KV memory has tokens, "
            f"{result.running:5.1f} requests run at once, {result.steps} steps"
        )
        if args.json and block_size == 16:
            share = Figure("held KV memory with tokens", "%", [100 * result.share], more_is_better=True)
            write_figures(args.json, [share, Figure("steps of the KV memory run", "steps", [result.steps])])


if __name__ == "__main__":
    main()
