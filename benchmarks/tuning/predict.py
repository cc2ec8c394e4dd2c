"""How well a replay foretells runs that it has not seen: other budgets, targets, rates and lengths.

Rounds of short segments, one a setting, by turns: the one that is recorded, and each that is held out. So what else the
machine does falls on all of them alike. The cost model is fitted to the recorded segments alone; what was measured of
the held-out ones is only compared.

The rate is a share of what the machine can do, which a few requests at once tell in the beginning.
"""

from __future__ import annotations

import argparse
import dataclasses
import tempfile
import threading
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.tuning.scenes import LARGEST_BUDGET, VOCABULARY, greedy, undisturbed_ttft
from cudaprefill import LLM
from cudaprefill.observe.direct_hub import DirectHub
from cudaprefill.observe.trace import Trace, TraceHeader, TraceWriter, read_trace
from cudaprefill.tune.figures import recorded_run, relative_errors
from cudaprefill.tune.replay import replay_often
from cudaprefill.tune.report import Row, table
from cudaprefill.tune.step_times import StepModel, step_times
from cudaprefill.tune.sweep import with_settings
from cudaprefill.tune.trace_workload import scheduler_config, trace_workload
from cudaprefill.tune.workload import Arrival, SyntheticTraffic, Workload

PREFIXES = 3  # shared by prompts of a segment
WARM_UP = 8  # requests at once


@dataclass(frozen=True)
class Setting:
    name: str
    budget: int
    target_ms: float = 0.0
    other_traffic: bool = False

    @property
    def settings(self) -> dict[str, Any]:
        return {"max_num_batched_tokens": self.budget, "itl_target_ms": self.target_ms}

    def traffic(self, requests: int, rate: float, seed: int) -> SyntheticTraffic:
        common = {"requests": requests, "prefix": 192, "prefixes": PREFIXES, "seed": 2 * seed + self.other_traffic}
        if self.other_traffic:
            return SyntheticTraffic(rate=1.2 * rate, prompt=120, output=56, **common)  # type: ignore[arg-type]
        return SyntheticTraffic(rate=rate, prompt=200, output=40, **common)  # type: ignore[arg-type]


RECORDED = Setting("recorded: budget 512", 512)
HELD_OUT = (
    Setting("budget 128", 128),
    Setting("budget 512, target 80 ms", 512, 80.0),
    Setting("faster, other lengths, budget 512", 512, other_traffic=True),
    Setting("faster, other lengths, budget 256", 256, other_traffic=True),
)


def add_flags(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--rounds", type=int, default=14)
    parser.add_argument("--requests", type=int, default=8, help="of a segment")
    parser.add_argument("--load", type=float, default=0.5, help="the rate, as a share of what the machine can do")
    parser.add_argument("--seed", type=int, default=0, help="of the traffic")


class Recorder:
    """What happens in one setting's segments, as one trace."""

    def __init__(self, llm: LLM, setting: Setting, path: Path) -> None:
        self._llm, self._settings = llm, setting.settings
        llm.change_settings(**self._settings)
        header = llm._engine.call(
            lambda engine: TraceHeader(
                "benchmark", asdict(llm.info), asdict(engine.scheduler.config), time.monotonic(), time.time()
            )
        ).result()
        self._writer = TraceWriter(path, header)

    def run(self, segment: Sequence[Arrival], first_index: int) -> None:
        """Each request at its time, from a thread of its own."""
        self._llm.reset_prefix_cache()
        self._llm.change_settings(**self._settings)
        self._listen(DirectHub(self._writer.record))
        threads = []
        begin = time.monotonic() - segment[0].time
        for index, arrival in enumerate(segment, first_index):
            tokens = (arrival.token_ids(index)[: arrival.num_prompt_tokens] % VOCABULARY).tolist()
            time.sleep(max(0.0, begin + arrival.time - time.monotonic()))
            stream = self._llm.stream(tokens, greedy(arrival.num_output_tokens[0]))
            threads.append(threading.Thread(target=stream.wait))
            threads[-1].start()
        for thread in threads:
            thread.join()
        self._listen(None)

    def trace(self) -> Trace:
        self._writer.close()
        return read_trace(self._writer.path)

    def _listen(self, hub: DirectHub | None) -> None:
        def set_up(engine: Any) -> None:
            engine.scheduler.record_prefixes(hub is not None)
            engine.listen(hub)

        self._llm._engine.call(set_up).result()


def segments(setting: Setting, rounds: int, requests: int, rate: float, seed: int) -> list[list[Arrival]]:
    """Of each round, from 0.0 on. The cache is emptied before each, so none has a prefix of another."""
    return [
        [
            dataclasses.replace(arrival, prefix=arrival.prefix + PREFIXES * number)
            for arrival in setting.traffic(requests, rate, seed * rounds + number).make()
        ]
        for number in range(rounds)
    ]


def at_the_times_of(recorded: Workload, held_out: Sequence[Sequence[Arrival]]) -> Workload:
    """Each segment begins when that of the recorded run did: there the model knows how fast the machine was."""
    requests = len(recorded.arrivals) // len(held_out)
    return Workload(
        [
            dataclasses.replace(arrival, time=recorded.arrivals[requests * number].time + arrival.time)
            for number, segment in enumerate(held_out)
            for arrival in segment
        ],
        "held out",
    )


def capacity(llm: LLM) -> float:
    """Requests a second of the recorded kind, when all come at once."""
    arrivals = RECORDED.traffic(WARM_UP, 1.0, 10**6).make().arrivals
    prompts = [(each.token_ids(0)[: each.num_prompt_tokens] % VOCABULARY).tolist() for each in arrivals]
    llm.change_settings(**RECORDED.settings)
    start = time.perf_counter()
    llm.generate(prompts, [greedy(each.num_output_tokens[0]) for each in arrivals])
    return WARM_UP / (time.perf_counter() - start)


def measure(flags: argparse.Namespace) -> dict[str, Any]:
    every = (RECORDED, *HELD_OUT)
    with tempfile.TemporaryDirectory() as folder, LLM(max_num_batched_tokens=LARGEST_BUDGET, max_num_seqs=32) as llm:
        print(llm.info)
        # As a server does: else the first run alone would wait for pages that the system has still to find.
        llm._engine.call(lambda engine: engine.model_runner.kv_cache.populate()).result()
        undisturbed_ttft(llm, 1)
        rate = flags.load * capacity(llm)
        made = {each: segments(each, flags.rounds, flags.requests, rate, flags.seed) for each in every}
        recorders = {each: Recorder(llm, each, Path(folder) / str(place)) for place, each in enumerate(every)}
        for number in range(flags.rounds):
            first = number % len(every)
            for each in (*every[first:], *every[:first]):
                recorders[each].run(made[each][number], number * flags.requests)
        traces = {each: recorder.trace() for each, recorder in recorders.items()}
    recorded = traces[RECORDED]
    model = StepModel(step_times(recorded.events))
    print(f"{rate:.2f} requests a second; {model.num_steps} steps, half of them within {model.median_error:.1%}")
    workload = trace_workload(recorded, "recorded")
    runs = []
    for each in every:
        arrivals = at_the_times_of(workload, made[each]) if each.other_traffic else workload
        runs.append(_compare(each, traces[each], arrivals, recorded, model))
    steps, off = model.num_steps, model.median_error
    return {"rate": rate, "steps": steps, "median_error": off, "rounds": flags.rounds, "runs": runs}


def _compare(setting: Setting, real: Trace, arrivals: Workload, recorded: Trace, model: StepModel) -> dict[str, Any]:
    run = recorded_run(real.events)
    measured = run.figures()
    predicted = replay_often(arrivals, with_settings(scheduler_config(recorded), setting.settings), model)
    errors = {
        name: error for name, error in relative_errors(predicted, measured).items() if name.startswith(("ttft", "itl"))
    }
    print(f"\n{setting.name}: {measured.requests} requests, {len(run.itls)} gaps")
    print(table([Row({}, measured, "measured"), Row({}, predicted, "predicted")]))
    print("  ".join(f"{key.replace('_', ' ')} {error:+.1%}" for key, error in errors.items()))
    return {
        "name": setting.name,
        **asdict(setting),
        "gaps": len(run.itls),
        "measured": measured.as_dict(),
        "predicted": predicted.as_dict(),
        "errors": errors,
    }
