"""What a command line asks to be replayed: a workload, a cost model, and the settings to try."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cudaprefill.engine.scheduler_config import SchedulerConfig
from cudaprefill.observe.trace import Trace, read_trace
from cudaprefill.tune.figures import Figures, recorded_run, relative_errors
from cudaprefill.tune.public_traces import read_azure, read_mooncake
from cudaprefill.tune.replay import replay_often
from cudaprefill.tune.report import Row, Settings
from cudaprefill.tune.step_times import StepModel, step_times
from cudaprefill.tune.trace_workload import scheduler_config, trace_workload
from cudaprefill.tune.workload import SyntheticTraffic, Workload

SYNTHETIC = "synthetic:"


@dataclass(frozen=True)
class Experiment:
    """recorded: what the trace itself measured; None where the workload is another one than the trace's."""

    workload: Workload
    config: SchedulerConfig
    model: StepModel
    recorded: Figures | None

    @classmethod
    def open(cls, source: str, cost_from: str | None = None, rate: float = 1.0) -> Experiment:
        """source: a recorded trace, Azure's or Mooncake's file, or "synthetic:" and what it is like.

        cost_from: the trace that the cost model and the settings come from, for a source that has none.
        rate: arrivals so many times as fast.
        Raises OSError, and ValueError saying what is wrong.
        """
        workload: Workload
        recorded: Figures | None = None
        trace: Trace | None = None
        if source.startswith(SYNTHETIC):
            workload = SyntheticTraffic.parse(source.removeprefix(SYNTHETIC)).make()
        elif source.endswith(".csv"):
            workload = read_azure(Path(source))
        elif source.endswith(".jsonl"):
            workload = read_mooncake(Path(source))
        else:
            trace = read_trace(source)
            workload = trace_workload(trace, Path(source).name)
            recorded = recorded_run(trace.events).figures()
        if cost_from is not None:
            trace = read_trace(cost_from)
        if trace is None:
            raise ValueError(f"{source} does not say what a step costs: name a recorded trace with --cost-from")
        if rate != 1.0:
            workload, recorded = workload.faster(rate), None
        return cls(workload, scheduler_config(trace), StepModel(step_times(trace.events)), recorded)

    def replayed(self, settings: Settings, seed: int = 0) -> Figures:
        """Raises ValueError for settings that contradict each other, and if no request got a token."""
        return replay_often(self.workload, with_settings(self.config, settings), self.model, seed)

    def own_error(self) -> dict[str, float] | None:
        """How far the model is off on the very run it was fitted to; None where that was not measured."""
        return None if self.recorded is None else relative_errors(self.replayed({}), self.recorded)

    def rows(self, tried: Iterable[Settings]) -> list[Row]:
        return [Row(settings, self.replayed(settings)) for settings in tried]

    def is_extrapolated(self, figures: Figures) -> bool:
        """Whether steps were larger than any that the model has seen."""
        return figures.largest_step > 1.25 * self.model.largest_step


def with_settings(config: SchedulerConfig, settings: Settings) -> SchedulerConfig:
    """A budget below max_num_seqs takes max_num_seqs along; a target of 0 is none."""
    changes: dict[str, Any] = dict(settings)
    if changes.get("itl_target_ms") == 0:
        changes["itl_target_ms"] = None
    budget = changes.get("max_num_batched_tokens", config.max_num_batched_tokens)
    if "max_num_seqs" not in changes:
        changes["max_num_seqs"] = min(config.max_num_seqs, budget)
    return dataclasses.replace(config, **changes, token_budget_limit=None)


def combinations(choices: Mapping[str, Sequence[Any]]) -> list[Settings]:
    """Every combination of the values; {} alone where there are no choices."""
    return [dict(zip(choices, values, strict=True)) for values in itertools.product(*choices.values())]
