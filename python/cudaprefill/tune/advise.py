"""Searches for settings that keep promises, by replay."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from cudaprefill.tune.figures import Figures
from cudaprefill.tune.report import Row, Settings
from cudaprefill.tune.sweep import Experiment

BUDGETS = (128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768)
SEEDS = (0, 1, 2)  # of the replays that say how much chance there is in the answer
LEAST_BUDGET = 64


@dataclass(frozen=True)
class Promise:
    """A percentile of TTFT or ITL that must not be above a limit."""

    kind: str  # "ttft" or "itl"
    percentile: str  # "p50", "p90" or "p99"
    limit: float  # seconds

    def value(self, figures: Figures) -> float:
        return float(getattr(figures, self.kind)[self.percentile])

    def excess(self, figures: Figures) -> float:
        """By which share of the limit it is exceeded; negative where it is kept."""
        return self.value(figures) / self.limit - 1

    def __str__(self) -> str:
        return f"{self.kind.upper()} {self.percentile} {self.limit * 1e3:g} ms"


@dataclass(frozen=True)
class Advice:
    """best: the settings that keep all promises, or come closest.

    spread: by promise, how far its figure lies from the middle over other seeds, as a share of it.
    model_error: by promise, how far the model is off on the recorded run; empty where nothing was measured.
    """

    best: Row
    kept: bool
    tried: list[Row]
    spread: dict[str, float]
    model_error: dict[str, float]
    extrapolated: bool

    @property
    def margin(self) -> float:
        """What the figures may be off by: the model's own error and chance together."""
        return max((*self.spread.values(), *map(abs, self.model_error.values())), default=0.0)

    @property
    def confidence(self) -> str:
        """In words, with the reason."""
        reasons = []
        if self.extrapolated:
            reasons.append("steps are larger than any that was recorded")
        if not self.model_error:
            reasons.append("nothing was measured for this workload to compare with")
        elif max(map(abs, self.model_error.values())) > 0.1:
            reasons.append("the model is more than 10 % off on the recorded run itself")
        if max(self.spread.values(), default=0.0) > 0.1:
            reasons.append("chance alone moves the figures by more than 10 %")
        level = ("good", "fair")[len(reasons)] if len(reasons) < 2 else "low"
        return ": ".join(filter(None, (level, "; ".join(reasons))))


def advise(experiment: Experiment, promises: Sequence[Promise]) -> Advice:
    """Of the settings that keep all promises, the one with the shortest TTFT; else the one that misses them by least.

    Raises ValueError if there is no promise, or no setting with which a request gets a token.
    """
    if not promises:
        raise ValueError("name at least one limit: --ttft-p99, --itl-p99 ...")
    tried = [Row(settings, experiment.replayed(settings)) for settings in _candidates(experiment, promises)]
    fewest_refused = min(row.figures.refused for row in tried)
    possible = [row for row in tried if row.figures.refused == fewest_refused]

    def rank(row: Row) -> tuple[float, float, float]:
        missed = sum(max(0.0, promise.excess(row.figures)) for promise in promises)
        return (missed, row.figures.ttft["p99"], row.figures.itl["p99"])

    best = min(possible, key=rank)
    again = [experiment.replayed(best.settings, seed) for seed in SEEDS]
    errors = experiment.own_error()
    return Advice(
        best=best,
        kept=rank(best)[0] == 0.0,
        tried=tried,
        spread={str(promise): _spread([promise.value(figures) for figures in again]) for promise in promises},
        model_error={}
        if errors is None
        else {str(promise): errors.get(f"{promise.kind}_{promise.percentile}", 0.0) for promise in promises},
        extrapolated=experiment.is_extrapolated(best.figures),
    )


def _candidates(experiment: Experiment, promises: Sequence[Promise]) -> Iterator[Settings]:
    """Fixed budgets; and under the larger ones, targets around what was promised for the ITL."""
    longest = max(arrival.num_prompt_tokens for arrival in experiment.workload)
    budgets = [budget for budget in BUDGETS if budget <= 2 * max(longest, LEAST_BUDGET)] or [BUDGETS[0]]
    for budget in budgets:
        yield {"max_num_batched_tokens": budget, "itl_target_ms": 0.0}
    for promise in promises:
        if promise.kind == "itl":
            for share in (0.6, 0.8, 0.95):
                for budget in budgets[-2:]:
                    yield {"max_num_batched_tokens": budget, "itl_target_ms": round(promise.limit * 1e3 * share, 1)}


def _spread(values: Sequence[float]) -> float:
    middle = sorted(values)[len(values) // 2]
    return max(abs(value - middle) for value in values) / middle if middle > 0 else 0.0
