"""A run is recorded and replayed with other settings and other traffic; then the engine runs these itself.

The engine is the real one, on a model without arithmetic and a clock that moves as a machine's would: the cost of a
step bends with its tokens, scatters, and swings between once and 1.6 times that in the course of some seconds.
"""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from cudaprefill.engine.batch import Batch
from cudaprefill.engine.engine import Engine
from cudaprefill.engine.schedule import Schedule
from cudaprefill.engine.scheduler import Scheduler
from cudaprefill.engine.scheduler_config import SchedulerConfig
from cudaprefill.engine.step_cost import StepWork
from cudaprefill.observe.direct_hub import DirectHub
from cudaprefill.observe.trace import Trace, TraceHeader, TraceWriter, read_trace
from cudaprefill.sampling_params import SamplingParams
from cudaprefill.tune.figures import recorded_run, relative_errors
from cudaprefill.tune.replay import replay_often
from cudaprefill.tune.step_times import StepModel, step_times
from cudaprefill.tune.sweep import with_settings
from cudaprefill.tune.trace_workload import scheduler_config, trace_workload
from cudaprefill.tune.workload import SyntheticTraffic, Workload
from tests.engine.harness import MAX_MODEL_LEN, VOCAB_SIZE, FakeRunner, letters, make_request

REQUESTS = 100
CONFIG = SchedulerConfig(num_blocks=400, max_model_len=MAX_MODEL_LEN, max_num_batched_tokens=64, max_num_seqs=16)
TRAFFIC = SyntheticTraffic(
    requests=REQUESTS, rate=3.0, prompt=120, output=24, spread=0.4, prefix=64, prefixes=3, seed=1
)
OTHER = SyntheticTraffic(requests=REQUESTS, rate=3.6, prompt=80, output=36, spread=0.4, prefix=64, prefixes=3, seed=2)
GAP = 0.0004  # seconds between two steps
GOALS = {"p50": 0.10, "p90": 0.20, "p99": 0.20, "second": 0.10}


class Machine:
    """Steps the engine's clock."""

    def __init__(self, seed: int) -> None:
        self.now = 0.0
        self._random = np.random.default_rng(seed)

    def work(self, work: StepWork) -> None:
        tokens = work.decodes + work.chunk_tokens
        seconds = 0.002 + max(0.008, 0.0011 * tokens) + 2e-7 * work.decode_context + 4e-7 * work.chunk_pairs
        slow = 1.3 - 0.3 * math.cos(2 * math.pi * self.now / 7.0)
        self.now += seconds * slow * float(np.exp(0.05 * self._random.standard_normal()))


class Runner(FakeRunner):
    """Takes as long as the machine for the step that was scheduled last."""

    def __init__(self, scheduler: Scheduler, machine: Machine) -> None:
        super().__init__(scheduler.config.num_blocks, scheduler.config.block_size)
        self._machine = machine
        self._scheduled: Schedule | None = None
        decide = scheduler.schedule

        def schedule(now: float | None = None) -> Schedule | None:
            self._scheduled = decide(now)
            return self._scheduled

        scheduler.schedule = schedule  # type: ignore[method-assign]

    def run(self, batch: Batch) -> torch.Tensor:
        assert self._scheduled is not None
        self._machine.work(self._scheduled.work)
        return super().run(batch)


def run_for_real(folder: Path, workload: Workload, seed: int, settings: dict[str, Any]) -> Trace:
    machine = Machine(seed)
    scheduler = Scheduler(with_settings(CONFIG, settings), clock=lambda: machine.now)
    runner: Any = Runner(scheduler, machine)
    engine = Engine(scheduler, runner, letters(), torch.device("cpu"), clock=lambda: machine.now)
    header = TraceHeader("test", {}, dataclasses.asdict(scheduler.config), time=0.0, unix_time=0.0)
    writer = TraceWriter(folder / f"trace-{seed}", header, max_pending=10**9)
    scheduler.record_prefixes(True)
    engine.listen(DirectHub(writer.record))
    arrivals = list(enumerate(workload))
    while arrivals or engine.has_work():
        if not engine.has_work():
            machine.now = max(machine.now, arrivals[0][1].time)
        while arrivals and arrivals[0][1].time <= machine.now:
            index, arrival = arrivals.pop(0)
            tokens = arrival.token_ids(index)[: arrival.num_prompt_tokens] % VOCAB_SIZE
            params = SamplingParams(temperature=0, max_tokens=arrival.num_output_tokens[0], ignore_eos=True)
            request = make_request(arrival.id, tokens.tolist(), params, arrival_time=arrival.time)
            request.tokenized_time = arrival.time
            engine.submit(request)
        engine.step()
        machine.now += GAP
    writer.close()
    return read_trace(writer.path)


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Trace:
    return run_for_real(tmp_path_factory.mktemp("recorded"), TRAFFIC.make(), 1, {})


@pytest.mark.parametrize(
    ("traffic", "settings"),
    [
        (TRAFFIC, {}),
        (TRAFFIC, {"max_num_batched_tokens": 128, "itl_target_ms": 50.0}),
        (OTHER, {"max_num_batched_tokens": 128}),
        (OTHER, {"max_num_seqs": 4}),
    ],
)
def test_a_replay_predicts_what_the_engine_then_does(
    recorded: Trace, traffic: SyntheticTraffic, settings: dict[str, Any], tmp_path: Path
) -> None:
    model = StepModel(step_times(recorded.events))
    workload = trace_workload(recorded, "recorded") if traffic is TRAFFIC else traffic.make()
    predicted = replay_often(workload, with_settings(scheduler_config(recorded), settings), model)
    measured = recorded_run(run_for_real(tmp_path, traffic.make(), 2, settings).events).figures()
    errors = relative_errors(predicted, measured)
    assert {
        name: round(error, 3) for name, error in errors.items() if abs(error) > GOALS[name.rpartition("_")[2]]
    } == {}
    assert predicted.hit_rate == pytest.approx(measured.hit_rate, abs=0.02)
    assert measured.requests == predicted.requests == REQUESTS
