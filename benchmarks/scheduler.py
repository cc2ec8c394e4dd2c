"""What the scheduler costs: schedule + batch arrays + commit of the sampled tokens, without a model.

    python -m benchmarks.scheduler [--json FILE]

Every request decodes; the pool has 150,000 blocks of 16. A last line times the look-up of a cached 32k-token prompt.
"""

from __future__ import annotations

import argparse
import random
import time
from pathlib import Path

import numpy as np

from benchmarks.figures import Figure, write_figures
from cudaprefill.engine.request import Request
from cudaprefill.engine.scheduler import Scheduler, SchedulerConfig
from cudaprefill.sampling_params import SamplingParams

NUM_BLOCKS = 150_000
BLOCK_SIZE = 16
NUM_SAMPLES = 5  # of a figure: medians of so many parts of the run
VOCAB_SIZE = 32_000


def make_scheduler(max_num_seqs: int, max_model_len: int) -> Scheduler:
    config = SchedulerConfig(
        num_blocks=NUM_BLOCKS,
        block_size=BLOCK_SIZE,
        max_model_len=max_model_len,
        max_num_batched_tokens=8192,
        max_num_seqs=max_num_seqs,
    )
    return Scheduler(config)


def make_request(request_id: str, length: int, random_numbers: random.Random) -> Request:
    return Request(
        request_id=request_id,
        prompt_token_ids=[random_numbers.randrange(VOCAB_SIZE) for _ in range(length)],
        sampling_params=SamplingParams(max_tokens=None, stop_token_ids=[VOCAB_SIZE]),
        eos_token_ids=(VOCAB_SIZE + 1,),
    )


def step(scheduler: Scheduler, token_ids: np.ndarray) -> tuple[float, float, float]:
    """Seconds that schedule, build and commit took."""
    start = time.perf_counter()
    schedule = scheduler.schedule()
    assert schedule is not None
    scheduled = time.perf_counter()
    scheduler.build(schedule)
    built = time.perf_counter()
    scheduler.commit(schedule, token_ids[: len(schedule.sampled)])
    scheduler.end_step(schedule)
    return scheduled - start, built - scheduled, time.perf_counter() - built


def time_decodes(num_requests: int, num_tokens: int, num_steps: int) -> Figure:
    random_numbers = random.Random(0)
    scheduler = make_scheduler(num_requests, max_model_len=32_768)
    for index in range(num_requests):
        scheduler.add(make_request(f"request-{index}", num_tokens, random_numbers))
    token_ids = np.random.default_rng(0).integers(VOCAB_SIZE, size=num_requests)
    while scheduler.num_decoding < num_requests:
        step(scheduler, token_ids)
    times = 1e3 * np.array([step(scheduler, token_ids) for _ in range(num_steps)])
    total = times.sum(axis=1)
    schedule_ms, build_ms, commit_ms = np.median(times, axis=0)
    print(
        f"{num_requests:5} requests of {num_tokens}: median {np.median(total):.3f} ms a step "
        f"(schedule {schedule_ms:.3f}, build {build_ms:.3f}, commit {commit_ms:.3f}), "
        f"p99 {np.quantile(total, 0.99):.3f} ms"
    )
    return Figure(f"scheduling of {num_requests} requests", "ms", _medians(total))


def time_prefix_match(num_tokens: int, repeats: int) -> Figure:
    """Admits one prompt again and again: hashing, looking up and taking all its cached blocks."""
    scheduler = make_scheduler(1, max_model_len=num_tokens + 1)
    prompt = make_request("", num_tokens, random.Random(0)).prompt_token_ids
    params = SamplingParams(max_tokens=1)
    times = []
    for index in range(repeats + 1):
        scheduler.add(Request(request_id=f"request-{index}", prompt_token_ids=prompt, sampling_params=params))
        start = time.perf_counter()
        schedule = scheduler.schedule()
        times.append(1e3 * (time.perf_counter() - start))
        while schedule is not None:
            scheduler.commit(schedule, [0] * len(schedule.sampled))
            scheduler.end_step(schedule)
            schedule = scheduler.schedule()
    print(f"prefix match of {num_tokens} tokens, in its step: median {np.median(times[1:]):.3f} ms")
    return Figure(f"prefix match of {num_tokens} tokens", "ms", _medians(np.array(times[1:])))


def _medians(times: np.ndarray) -> list[float]:
    return [float(np.median(part)) for part in np.array_split(times, NUM_SAMPLES)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, nargs="+", default=[256, 1024])
    parser.add_argument("--tokens", type=int, default=2048, help="prompt tokens of each request")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    args = parser.parse_args()
    figures = [time_decodes(num_requests, args.tokens, args.steps) for num_requests in args.requests]
    figures.append(time_prefix_match(32_768, repeats=50))
    if args.json:
        write_figures(args.json, figures)


if __name__ == "__main__":
    main()
