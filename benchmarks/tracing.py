"""What --trace costs: throughput with it and without, in many short segments by turns, and the time it takes itself.

    python -m benchmarks.tracing [--minutes 5] [--keep]

One engine decodes eight streams and takes a new prompt in every segment. Segments of eight steps come in pairs: every
other pair has one of the two traced, the pairs between have none, and tell what the procedure resolves. Who comes first
changes from pair to pair, so that what drifts falls on both. A segment ends when its events are in the file: nothing of
its cost is left to the next one. So the writer's thread is woken once a segment, some eight times a second here;
in a run it is once a second.

The ratio of a pair is robust where the machine is not: the median of all is told, with the interval that 95 % of the
medians of resampled pairs lie in; once by the time that passed, once by the processor time of all threads, which does
not count what other programs take. Beside it stands what is spent on events for each step, by the engine's thread and
by the writer's.
"""

from __future__ import annotations

import argparse
import itertools
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.tuning.result import Result
from cudaprefill import SamplingParams
from cudaprefill.config import EngineConfig
from cudaprefill.engine.factory import EngineParts, build_engine
from cudaprefill.observe.direct_hub import DirectHub
from cudaprefill.observe.events import RequestEvent, StepEvent
from cudaprefill.observe.trace import TraceWriter

STREAMS, STREAM_TOKENS, PROMPT_TOKENS = 8, 400, 64
STEPS = 8  # of a segment; the first has a prompt in it
RESAMPLED = 2000


@dataclass(frozen=True)
class Ratio:
    """Throughput traced over throughput plain: the median of pairs, and where it may lie."""

    median: float
    low: float
    high: float
    pairs: int

    @classmethod
    def of(cls, ratios: Sequence[float]) -> Ratio:
        values, random = np.asarray(ratios), np.random.default_rng(0)
        medians = np.median(random.choice(values, (RESAMPLED, len(values))), axis=1)
        low, high = np.quantile(medians, (0.025, 0.975))
        return cls(float(np.median(values)), float(low), float(high), len(values))

    def __str__(self) -> str:
        return f"{self.median:.4f} (95 %: {self.low:.4f} to {self.high:.4f}, {self.pairs} pairs)"


class Work:
    """Streams that never end, in an engine that is stepped here."""

    def __init__(self, parts: EngineParts) -> None:
        self.engine = parts.engine
        self._process = parts.input_processor.process_prompt
        self._vocab_size = parts.input_processor.vocab_size
        self._ids = itertools.count()
        self._random = np.random.default_rng(0)

    def submit(self, max_tokens: int) -> None:
        prompt = self._random.integers(100, self._vocab_size, PROMPT_TOKENS).tolist()
        params = SamplingParams(temperature=0, max_tokens=max_tokens, ignore_eos=True)
        self.engine.submit(self._process(f"request-{next(self._ids)}", prompt, params)[0])

    def refill(self) -> None:
        """As many streams as at the beginning, all with as many tokens left: pairs must not differ by an end."""
        self.engine.abort_all()
        for _ in range(STREAMS):
            self.submit(STREAM_TOKENS)
        while self.engine.scheduler.num_decoding < STREAMS:
            self.engine.step()

    def segment(self, writer: TraceWriter | None) -> tuple[float, float]:
        """Seconds of some steps, by the wall and of all processors; `writer` is to be told, and is waited for."""
        start, processor = time.perf_counter(), time.process_time()
        self.submit(1)
        for _ in range(STEPS):
            self.engine.step()
        if writer is not None:
            writer.drain()
        return time.perf_counter() - start, time.process_time() - processor


@dataclass(frozen=True)
class Pairs:
    """Time of plain segments over that of traced ones, which is the ratio of throughputs."""

    wall: list[float]
    processor: list[float]


def measure_pairs(work: Work, writer: TraceWriter, seconds: float) -> dict[bool, Pairs]:
    """By whether one of each pair was traced."""
    engine, hub = work.engine, DirectHub(writer.record)
    pairs = {True: Pairs([], []), False: Pairs([], [])}
    until = time.monotonic() + seconds
    for pair in itertools.count():
        if pair % (STREAM_TOKENS // (3 * STEPS)) == 0:
            if time.monotonic() > until:
                break
            work.refill()
        traced = pair % 2 == 0
        taken: dict[bool, tuple[float, float]] = {}
        for first in (True, False) if pair % 4 < 2 else (False, True):
            on = first and traced
            engine.listen(hub if on else None)
            engine.scheduler.record_prefixes(on)
            taken[first] = work.segment(writer if on else None)
        pairs[traced].wall.append(taken[False][0] / taken[True][0])
        pairs[traced].processor.append(taken[False][1] / taken[True][1])
    engine.listen(None)
    engine.scheduler.record_prefixes(False)
    return pairs


class Stopwatch:
    """Processor time of the engine's thread that goes into making events and into telling the writer of them."""

    def __init__(self, work: Work, writer: TraceWriter) -> None:
        self.seconds = 0.0
        self.steps = 0
        self._writer = writer
        scheduler = work.engine.scheduler
        make = scheduler.step_event

        def timed(*arguments: Any) -> StepEvent:
            start = time.thread_time()
            event = make(*arguments)
            self.seconds += time.thread_time() - start
            return event

        scheduler.step_event = timed  # type: ignore[method-assign]

    def record(self, event: RequestEvent | StepEvent) -> None:
        start = time.thread_time()
        self._writer.record(event)
        self.seconds += time.thread_time() - start
        self.steps += isinstance(event, StepEvent)


def own_time(work: Work, writer: TraceWriter, segments: int) -> dict[str, float]:
    """Seconds of processor time a step, by both threads, and their share of the time that passed."""
    watch = Stopwatch(work, writer)
    work.engine.listen(DirectHub(watch.record))
    work.engine.scheduler.record_prefixes(True)
    work.refill()
    watch.seconds, watch.steps = 0.0, 0
    before, start = writer.processor_seconds(), time.perf_counter()
    for _ in range(segments):
        work.segment(writer)
    passed = time.perf_counter() - start
    by_writer = writer.processor_seconds() - before
    return {
        "engine_us_a_step": watch.seconds / watch.steps * 1e6,
        "writer_us_a_step": by_writer / watch.steps * 1e6,
        "share": (watch.seconds + by_writer) / passed,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", help="(default: the packaged model)")
    parser.add_argument("--minutes", type=float, default=5.0)
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    parser.add_argument("--keep", action="store_true", help="write them into the results and into docs/tuning.md")
    flags = parser.parse_args()
    result = Result.begin("benchmarks.tracing")
    with tempfile.TemporaryDirectory() as folder:
        parts = build_engine(
            EngineConfig(model=flags.model, max_num_seqs=2 * STREAMS, itl_target_ms=0.0, trace=Path(folder) / "trace")
        )
        print(parts.info)
        assert parts.trace is not None
        work = Work(parts)
        measure_pairs(work, parts.trace, 2.0)  # not counted
        pairs = measure_pairs(work, parts.trace, 60 * flags.minutes)
        own = own_time(work, parts.trace, 24)
        dropped = parts.trace.num_dropped
        parts.trace.close()
    figures: dict[str, Any] = {"own": own, "dropped": dropped}
    for traced, name in ((True, "traced"), (False, "control")):
        wall, processor = Ratio.of(pairs[traced].wall), Ratio.of(pairs[traced].processor)
        what = "throughput traced / plain" if traced else "nothing traced"
        print(f"{what:26} {wall}\n{'':26} {processor} by processor time")
        figures[name] = {"wall": asdict(wall), "processor": asdict(processor)}
    print(
        f"own processor time         {own['engine_us_a_step']:.0f} us a step by the engine's thread, "
        f"{own['writer_us_a_step']:.0f} us by the writer's: {own['share']:.2%} of the time; goal: at least 0.99 in all"
    )
    result.end(figures, flags.json, "tracing" if flags.keep else None)
    return 0


if __name__ == "__main__":
    sys.exit(main())
