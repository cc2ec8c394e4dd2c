"""What --trace costs: throughput with it and without, by turns in one engine, and the time that it takes by itself.

    python benchmarks/tracing.py [--json FILE]

On a machine that others use, the ratio of two throughputs moves by more than what is measured here: the second figure,
processor time spent on events by both threads for each step, is the steadier one.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from pathlib import Path

from cudaprefill import LLM, SamplingParams
from cudaprefill.observe.direct_hub import DirectHub
from cudaprefill.observe.events import RequestEvent, StepEvent

PROMPT_TOKENS, OUTPUT_TOKENS, REQUESTS = 200, 64, 8


class Stopwatch:
    """Processor time of the engine's thread that goes into telling the trace of events."""

    def __init__(self, llm: LLM) -> None:
        assert llm._trace is not None
        self._record = llm._trace.record
        self.seconds = 0.0
        self.steps = 0

    def __call__(self, event: RequestEvent | StepEvent) -> None:
        start = time.thread_time()
        self._record(event)
        self.seconds += time.thread_time() - start
        self.steps += isinstance(event, StepEvent)


def throughput(llm: LLM, number: int) -> float:
    """Output tokens a second; prompts are new each time."""
    prompts = [
        {"prompt_token_ids": [(number * 31 + request * 7 + place) % 5000 + 100 for place in range(PROMPT_TOKENS)]}
        for request in range(REQUESTS)
    ]
    start = time.perf_counter()
    outputs = llm.generate(prompts, SamplingParams(temperature=0, max_tokens=OUTPUT_TOKENS, ignore_eos=True))
    return sum(len(output.outputs[0].token_ids) for output in outputs) / (time.perf_counter() - start)


def step_event_seconds(llm: LLM) -> float:
    """Of making a StepEvent for a step of REQUESTS decodes."""
    schedule_times: list[float] = []

    def measure(engine: object) -> None:
        scheduler = engine.scheduler  # type: ignore[attr-defined]
        plain = scheduler.step_event

        def timed(*arguments: object) -> StepEvent:
            start = time.thread_time()
            event: StepEvent = plain(*arguments)
            schedule_times.append(time.thread_time() - start)
            return event

        scheduler.step_event = timed

    llm._engine.call(measure).result()
    throughput(llm, 10_000)
    return statistics.median(schedule_times)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    flags = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, LLM(trace=Path(folder) / "trace") as llm:
        print(llm.info)
        watch = Stopwatch(llm)
        assert llm._trace is not None
        hub, thread = DirectHub(watch), llm._trace._thread
        assert thread.ident is not None
        clock = time.pthread_getcpuclockid(thread.ident)
        rates: dict[bool, list[float]] = {True: [], False: []}
        throughput(llm, 0)
        writer_before, traced_seconds = time.clock_gettime(clock), 0.0
        for number in range(flags.rounds):
            for traced in (number % 2 == 0, number % 2 == 1):
                llm._engine.call(lambda engine, hub=hub if traced else None: engine.listen(hub)).result()
                start = time.perf_counter()
                rates[traced].append(throughput(llm, 2 * number + traced + 1))
                traced_seconds += (time.perf_counter() - start) * traced
        writer = time.clock_gettime(clock) - writer_before
        llm._engine.call(lambda engine: engine.listen(hub)).result()
        event = step_event_seconds(llm)
        dropped = llm._trace.num_dropped
    own = watch.seconds + writer + event * watch.steps
    figures = {
        "traced_tokens_s": statistics.median(rates[True]),
        "plain_tokens_s": statistics.median(rates[False]),
        "ratio": statistics.median(rates[True]) / statistics.median(rates[False]),
        "steps": watch.steps,
        "event_us_a_step": event * 1e6,
        "record_us_a_step": watch.seconds / watch.steps * 1e6,
        "writer_us_a_step": writer / watch.steps * 1e6,
        "own_share": own / traced_seconds,
        "dropped": dropped,
    }
    print(
        f"throughput  {figures['traced_tokens_s']:.1f} tokens/s traced, {figures['plain_tokens_s']:.1f} without: "
        f"{figures['ratio']:.4f} (goal: at least 0.99)\n"
        f"own time    {figures['event_us_a_step']:.0f} us to make a step's event, "
        f"{figures['record_us_a_step']:.0f} us to record, {figures['writer_us_a_step']:.0f} us to write: "
        f"{figures['own_share']:.2%} of the time traced (goal: at most 1 %)"
    )
    if flags.json:
        flags.json.write_text(json.dumps(figures, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
