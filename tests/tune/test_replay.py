"""The replay of a machine whose true cost is known."""

from __future__ import annotations

import dataclasses
import functools
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cudaprefill.engine.scheduler_config import SchedulerConfig
from cudaprefill.engine.step_cost import StepWork
from cudaprefill.observe.trace import Trace, TraceHeader, TraceWriter, read_trace
from cudaprefill.tune.figures import Figures, recorded_run, relative_errors
from cudaprefill.tune.replay import Replay, replay, replay_often
from cudaprefill.tune.step_times import StepModel, step_times
from cudaprefill.tune.trace_workload import scheduler_config, trace_workload
from cudaprefill.tune.workload import SyntheticTraffic, Workload

CONFIG = SchedulerConfig(num_blocks=2000, max_model_len=4096, max_num_batched_tokens=256, max_num_seqs=16)
TRAFFIC = SyntheticTraffic(requests=150, rate=0.9, prompt=600, output=40, prefix=256, prefixes=3, seed=1)


class Machine:
    """Memory bounds small steps, arithmetic large ones; attention counts; nothing is ever quite the same."""

    def __init__(self, noise: float = 0.05, bound: float = 0.010) -> None:
        """`bound`: seconds that memory takes for a step of any size."""
        self._noise, self._bound = noise, bound

    def draw(self, work: StepWork, now: float, random: np.random.Generator) -> float:
        tokens = work.decodes + work.chunk_tokens
        seconds = 0.002 + max(self._bound, 0.0007 * tokens) + 2e-7 * work.decode_context + 3e-8 * work.chunk_pairs
        return seconds * float(np.exp(self._noise * random.standard_normal()))

    def draw_gap(self, work: StepWork, random: np.random.Generator) -> float:
        return 0.0005 + 0.00002 * work.decodes


def record(path: Path, config: SchedulerConfig, workload: Workload, machine: Machine, seed: int = 7) -> Trace:
    """The trace of a run of that machine."""
    run = Replay(workload, config, machine, seed)
    header = TraceHeader("test", {"model": "synthetic"}, dataclasses.asdict(config), time=0.0, unix_time=0.0)
    writer = TraceWriter(path, header, max_pending=10**9)
    scheduler: Any = run._scheduler
    scheduler.record_prefixes(True)
    scheduler.on_event = writer.record
    end_step = scheduler.end_step

    def end_and_tell(schedule: Any) -> None:
        end_step(schedule)
        writer.record(scheduler.step_event(schedule, schedule.start, run._now - schedule.start))

    scheduler.end_step = end_and_tell
    run.to_end()
    writer.close()
    assert recorded_run(read_trace(path).events).figures().ttft == pytest.approx(run.run.figures().ttft, abs=1e-5)
    return read_trace(path)


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> Trace:
    return record(tmp_path_factory.mktemp("trace") / "trace", CONFIG, TRAFFIC.make(), Machine())


def replayed(trace: Trace, **changes: Any) -> Figures:
    config = dataclasses.replace(scheduler_config(trace), **changes)
    return replay_often(trace_workload(trace, "trace"), config, StepModel(step_times(trace.events)))


@functools.cache
def truth(**changes: Any) -> Figures:
    return replay_often(TRAFFIC.make(), dataclasses.replace(CONFIG, **changes), Machine(), seed=11)


def assert_close(errors: dict[str, float]) -> None:
    """10 %; at p99, where one of few requests decides, 20 %."""
    assert {name: error for name, error in errors.items() if abs(error) > (0.2 if "p99" in name else 0.1)} == {}


def test_a_recorded_run_is_measured_as_the_machine_ran(trace: Trace) -> None:
    measured = recorded_run(trace.events).figures()
    run = replay(TRAFFIC.make(), CONFIG, Machine(), seed=7).figures()
    for kind in ("ttft", "itl"):
        assert getattr(measured, kind) == pytest.approx(getattr(run, kind), abs=1e-5)
    for name in ("requests", "hit_rate", "preemptions", "steps"):
        assert getattr(measured, name) == getattr(run, name)
    assert run.hit_rate > 0.2


def test_a_short_workload_is_replayed_several_times_and_the_mean_is_told() -> None:
    few = SyntheticTraffic(requests=100, rate=0.9, prompt=600, output=40, prefix=256, prefixes=3, seed=1).make()
    runs = [replay(few, CONFIG, Machine(), seed).figures() for seed in range(5)]
    mean = replay_often(few, CONFIG, Machine())
    for name in ("p50", "p99"):
        assert mean.ttft[name] == pytest.approx(np.mean([run.ttft[name] for run in runs]))
    assert mean.requests == 100
    assert mean.seconds == pytest.approx(np.mean([run.seconds for run in runs]))
    assert mean.steps == round(np.mean([run.steps for run in runs]))


def test_a_machine_without_noise_is_predicted_within_one_per_cent(tmp_path: Path) -> None:
    quiet = record(tmp_path / "trace", CONFIG, TRAFFIC.make(), Machine(noise=0.0, bound=0.0))
    errors = relative_errors(replayed(quiet), recorded_run(quiet.events).figures())
    assert max(map(abs, errors.values())) < 0.01, errors


@pytest.mark.parametrize("changes", [{}, {"max_num_batched_tokens": 64}, {"max_num_batched_tokens": 1024}])
def test_other_budgets_are_predicted_within_ten_per_cent(trace: Trace, changes: dict[str, Any]) -> None:
    errors = relative_errors(replayed(trace, **changes), truth(**changes))
    assert_close(errors)


def test_a_target_is_predicted_and_kept(trace: Trace) -> None:
    predicted, measured = replayed(trace, itl_target_ms=60.0), truth(itl_target_ms=60.0)
    errors = relative_errors(predicted, measured)
    assert_close(errors)
    assert measured.itl["p99"] < 0.066 < truth().itl["p99"]


def test_without_prefix_caching_nothing_is_hit_and_first_tokens_come_later(trace: Trace) -> None:
    without = replayed(trace, enable_prefix_caching=False)
    assert without.hit_rate == 0
    assert without.ttft["p50"] > replayed(trace).ttft["p50"]


def test_other_rates_are_predicted_within_ten_per_cent(trace: Trace) -> None:
    workload = trace_workload(trace, "trace").faster(0.7)
    predicted = replay(workload, CONFIG, StepModel(step_times(trace.events))).figures()
    measured = replay(TRAFFIC.make().faster(0.7), CONFIG, Machine(), seed=11).figures()
    errors = relative_errors(predicted, measured)
    assert_close(errors)
