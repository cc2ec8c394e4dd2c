"""`cudaprefill profile`: where the time of a step goes, for steps of decodes, of a prompt, and of both."""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import json
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass

import numpy as np
import torch

from cudaprefill.cli.engine_flags import engine_config
from cudaprefill.cli.progress import loading_model
from cudaprefill.engine.factory import TOKEN_BUDGET, EngineParts, build_engine, resolve_device
from cudaprefill.observe.step_profiler import FORWARD, OTHER, PARTS, ProfiledStep, StepProfiler
from cudaprefill.sampling_params import SamplingParams


@dataclass(frozen=True)
class Shape:
    """What is in a step."""

    name: str
    num_decodes: int
    context: int  # tokens of each decode, at the first of the steps
    chunk_tokens: int

    def __str__(self) -> str:
        decodes = f"{self.num_decodes} at a context of {self.context:,}" if self.num_decodes else ""
        prompt = f"{self.chunk_tokens:,} tokens of a prompt" if self.chunk_tokens else ""
        return f"{self.name}: {' and '.join(filter(None, (decodes, prompt)))}"


@dataclass(frozen=True)
class Profile:
    """The steps of one shape: seconds of each part, and of the whole with and without the clocks."""

    shape: Shape
    num_steps: int
    seconds: float
    seconds_without_clocks: float
    parts: dict[str, float]


class Steps:
    """Makes an engine take steps of a shape."""

    def __init__(self, parts: EngineParts) -> None:
        self.engine = parts.engine
        self._input_processor = parts.input_processor
        self._vocab_size = parts.input_processor.vocab_size
        self._random = np.random.default_rng()
        self._ids = itertools.count()

    def submit(self, num_tokens: int, max_tokens: int) -> None:
        """A request with a prompt that no cache has."""
        prompt = self._random.integers(self._vocab_size, size=num_tokens).tolist()
        params = SamplingParams(temperature=0, max_tokens=max_tokens, ignore_eos=True)
        self.engine.submit(self._input_processor.process_prompt(f"profile-{next(self._ids)}", prompt, params)[0])

    def start_decodes(self, shape: Shape, num_steps: int) -> None:
        """Requests that decode at the shape's context, and go on for `num_steps`."""
        for _ in range(shape.num_decodes):
            # They leave their prefill one after the other, so that the first are some tokens ahead of the last.
            self.submit(shape.context, num_steps + 2 * shape.num_decodes + 2)
        while self.engine.scheduler.num_decoding < shape.num_decodes:
            self.engine.step()

    def take(self, shape: Shape) -> None:
        if shape.chunk_tokens:
            self.submit(shape.chunk_tokens, 1)
        self.engine.step()


def run(flags: argparse.Namespace) -> int:
    shapes = _shapes(flags)
    config = engine_config(flags)
    if config.max_num_batched_tokens is None:  # so that each shape fits into one step
        default = TOKEN_BUDGET[resolve_device(config.device).type]
        largest = max(shape.num_decodes + shape.chunk_tokens for shape in shapes)
        config = dataclasses.replace(config, max_num_batched_tokens=max(default, largest))
    if config.itl_target_ms is None:
        config = dataclasses.replace(config, itl_target_ms=0.0)  # for the same reason
    with loading_model() as progress:
        parts = build_engine(config, progress)
    print(f"cudaprefill: {parts.info}", file=sys.stderr, flush=True)
    _check_room(shapes, flags.steps, parts)
    parts.engine.model_runner.kv_cache.populate()  # as a server does
    steps = Steps(parts)
    profiles = [_profile(steps, shape, flags.steps) for shape in shapes]
    if flags.torch_trace is not None:
        _write_trace(steps, shapes, flags.torch_trace)
    if flags.json:
        print(json.dumps({"engine": asdict(parts.info), "profiles": [asdict(profile) for profile in profiles]}))
    else:
        print("\n\n".join(table(profile) for profile in profiles))
    return 0


def _shapes(flags: argparse.Namespace) -> list[Shape]:
    streams, context, tokens = flags.streams, flags.context, flags.prefill_tokens
    return [
        Shape("decodes", streams, context, 0),
        Shape("prefill", 0, 0, tokens),
        Shape("mixed", streams, context, tokens),
    ]


_WARM_UP = 3  # steps that are not counted


def _check_room(shapes: Sequence[Shape], num_steps: int, parts: EngineParts) -> None:
    """Raises ValueError naming the flag that asks for more than the engine has."""
    info = parts.info
    for shape in shapes:
        size = shape.num_decodes + shape.chunk_tokens
        if size > info.max_num_batched_tokens:
            raise ValueError(
                f"a step of {size} tokens does not fit into --max-num-batched-tokens {info.max_num_batched_tokens}"
            )
        if shape.num_decodes + bool(shape.chunk_tokens) > info.max_num_seqs:
            raise ValueError(f"--streams {shape.num_decodes} and a prompt exceed --max-num-seqs {info.max_num_seqs}")
        longest = max(shape.context + 2 * (num_steps + _WARM_UP + shape.num_decodes + 1), shape.chunk_tokens + 1)
        if longest > info.max_model_len:
            raise ValueError(
                f"{shape} for {num_steps} steps needs {longest} tokens of context; the engine has {info.max_model_len}"
            )
        slots = shape.num_decodes * (longest + info.block_size) + shape.chunk_tokens + info.block_size
        if slots > info.num_slots:
            raise ValueError(f"{shape} needs {slots:,} KV slots; the cache has {info.num_slots:,}")


def _profile(steps: Steps, shape: Shape, num_steps: int) -> Profile:
    """Steps with the clocks and without in turns, so that both meet the same contexts and the same machine."""
    engine = steps.engine
    profiler = StepProfiler(engine)
    without: list[float] = []
    steps.start_decodes(shape, 2 * (num_steps + _WARM_UP))
    for _ in range(num_steps + _WARM_UP):
        with profiler:
            steps.take(shape)
        without.append(_seconds(lambda: steps.take(shape)))
    engine.abort_all()
    expected = (shape.num_decodes, shape.chunk_tokens)
    for step in profiler.steps:
        if (step.num_decodes, step.chunk_tokens) != expected:
            raise ValueError(
                f"asked for a step of {expected[0]} decodes and {expected[1]} tokens of a prompt, the scheduler made "
                f"one of {step.num_decodes} and {step.chunk_tokens}: --long-prefill-token-threshold, --itl-target-ms"
            )
    middle = middle_half(profiler.steps[_WARM_UP:])
    return Profile(
        shape=shape,
        num_steps=num_steps,
        seconds=statistics.fmean(step.seconds for step in middle),
        seconds_without_clocks=statistics.median(without[_WARM_UP:]),
        parts={
            part: statistics.fmean(step.parts.get(part, 0.0) for step in middle)
            for part in (*PARTS, OTHER)
            if any(part in step.parts for step in middle)
        },
    )


def _seconds(work: Callable[[], None]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def middle_half(steps: Sequence[ProfiledStep]) -> list[ProfiledStep]:
    """Without the fastest and the slowest quarter: what disturbed the machine is not averaged in."""
    ordered = sorted(steps, key=lambda step: step.seconds)
    quarter = len(ordered) // 4
    return ordered[quarter : len(ordered) - quarter]


def _write_trace(steps: Steps, shapes: Sequence[Shape], path: str) -> None:
    """A few steps of each shape as torch's profiler sees them, with the parts named."""
    count = 3
    activities = [torch.profiler.ProfilerActivity.CPU]
    if steps.engine.device.type == "cuda":
        activities.append(torch.profiler.ProfilerActivity.CUDA)
    with torch.profiler.profile(activities=activities) as trace:
        for shape in shapes:
            steps.start_decodes(shape, count)
            for _ in range(count):
                with torch.profiler.record_function(str(shape)), StepProfiler(steps.engine, annotate=True):
                    steps.take(shape)
            steps.engine.abort_all()
    trace.export_chrome_trace(path)


def table(profile: Profile) -> str:
    """A line a part, the parts of the forward pass beneath their sum."""
    lines = [str(profile.shape)]
    total = profile.seconds

    def add(name: str, seconds: float) -> None:
        lines.append(f"  {name:28} {seconds * 1e3:9.3f} ms {seconds / total:6.1%}")

    forward = {name: seconds for name, seconds in profile.parts.items() if name.startswith(f"{FORWARD}: ")}
    for name, seconds in profile.parts.items():
        if name in forward:
            if name == next(iter(forward)):
                add(FORWARD, sum(forward.values()))
            add("  " + name.removeprefix(f"{FORWARD}: "), seconds)
        else:
            add(name, seconds)
    add("the step", total)
    lines.append(
        f"  mean of the middle half of {profile.num_steps} steps; without the clocks a step takes "
        f"{profile.seconds_without_clocks * 1e3:.3f} ms"
    )
    return "\n".join(lines)
