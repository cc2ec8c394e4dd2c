"""What steps took in a recorded run, and a model of it: the forward pass with all around it, and the gap behind it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from cudaprefill.engine.step_cost import StepWork
from cudaprefill.observe.events import RequestEvent, RequestEventKind, StepEvent
from cudaprefill.observe.explain.work import work_of
from cudaprefill.tune.pace import LEAST_SHARE, fit_cost_and_pace

Array = NDArray[np.float64]

LEAST_STEPS = 20  # that a model can be fitted to
# The time of a step by its tokens is bent: memory bounds a few, arithmetic many, and kernels change in between. Each
# stretch between two of these has a slope of its own, where enough steps were seen in it.
_KNOTS = (2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096)
_LEAST_IN_STRETCH = 12
_BINS = 8  # of steps by predicted time; each keeps its own deviations


@dataclass(frozen=True)
class StepTime:
    work: StepWork
    duration: float
    gap: float | None  # to the next step; None if the engine had nothing to do in between
    start: float = 0.0  # seconds from the first step


def step_times(events: Sequence[RequestEvent | StepEvent]) -> list[StepTime]:
    """In order, of a whole recorded run."""
    lengths: dict[int, int] = {}  # tokens of each request so far
    live: set[int] = set()
    steps: list[tuple[StepEvent, StepWork, bool]] = []
    for event in events:
        if isinstance(event, StepEvent):
            contexts = [lengths.get(number, 0) for number in event.decode_numbers]
            chunks = [(chunk.start, chunk.length) for chunk in event.chunks]
            for number in event.decode_numbers:
                lengths[number] = lengths.get(number, 0) + 1
            for chunk in event.chunks:
                if chunk.is_last:
                    lengths[chunk.number] = chunk.start + chunk.length + 1
            steps.append((event, work_of(len(contexts), sum(contexts), chunks), bool(live)))
        elif event.kind is RequestEventKind.ARRIVED:
            lengths[event.number] = event.num_prompt_tokens + 1
            live.add(event.number)
        elif event.kind is RequestEventKind.FINISHED:
            live.discard(event.number)
    times = []
    for (step, work, busy), after in zip(steps, [*steps[1:], None], strict=True):
        follows = after is not None and busy and after[0].number == step.number + 1
        gap = after[0].start - step.start - step.duration if follows and after is not None else None
        times.append(StepTime(work, step.duration, gap, step.start - steps[0][0].start))
    return times


def num_tokens(work: StepWork) -> int:
    return work.decodes + work.chunk_tokens


class StepModel:
    """Predicts steps, and draws times as they scatter around the prediction.

    A step's time is taken for what its work costs, times the pace of the machine at that time of the run, times chance.

    Raises ValueError if there are too few steps to fit.
    """

    def __init__(self, times: Sequence[StepTime]) -> None:
        times = [time for time in times if time.duration > 0]
        if len(times) < LEAST_STEPS:
            raise ValueError(f"a cost model needs at least {LEAST_STEPS} steps, the trace has {len(times)}")
        self.num_steps = len(times)
        self.largest_step = max(num_tokens(time.work) for time in times)
        tokens = np.array([num_tokens(time.work) for time in times])
        self._knots = _knots_for(tokens)
        durations = np.array([time.duration for time in times])
        features = np.array([self._features(time.work) for time in times])
        starts = np.array([time.start for time in times])
        self._coefficients, self._pace = fit_cost_and_pace(features, durations, starts)
        predicted = features @ self._coefficients
        ratios = durations / (np.maximum(predicted, LEAST_SHARE * durations) * self._pace.of_steps)
        self.median_error = float(np.median(np.abs(1 / ratios - 1)))
        self._scatter = Scatter(predicted, ratios)
        gaps = [(time.work.decodes, max(0.0, time.gap)) for time in times if time.gap is not None]
        self._gaps = Scatter(*map(np.array, zip(*gaps, strict=True))) if gaps else None

    def predict(self, work: StepWork) -> float:
        """Median seconds of such a step."""
        return float(np.dot(self._features(work), self._coefficients))

    def draw(self, work: StepWork, now: float, random: np.random.Generator) -> float:
        """Seconds of such a step that starts `now`, in seconds from the first."""
        predicted = self.predict(work)
        return predicted * self._pace.at(now) * self._scatter.draw(predicted, random)

    def draw_gap(self, work: StepWork, random: np.random.Generator) -> float:
        """Seconds until the next step, if there is work."""
        return 0.0 if self._gaps is None else self._gaps.draw(work.decodes, random)

    def _features(self, work: StepWork) -> list[float]:
        tokens = num_tokens(work)
        stretches = [min(max(tokens - low, 0), high - low) for low, high in self._knots]
        return [1.0, *stretches, work.decodes, work.decode_context, work.chunk_pairs]


def _knots_for(tokens: NDArray[np.int64]) -> list[tuple[float, float]]:
    """Stretches of token counts with enough steps in each; the last one has no end."""
    bounds = [0.0]
    for knot in _KNOTS:
        enough = np.count_nonzero((tokens > bounds[-1]) & (tokens <= knot)) >= _LEAST_IN_STRETCH
        if enough and np.count_nonzero(tokens > knot) >= _LEAST_IN_STRETCH:
            bounds.append(float(knot))
    return list(zip(bounds, [*bounds[1:], np.inf], strict=True))


class Scatter:
    """Values as they were seen near a place."""

    def __init__(self, places: Array, values: Array) -> None:
        order = np.argsort(places, kind="stable")
        count = max(1, min(_BINS, len(places) // LEAST_STEPS))
        bins = np.array_split(order, count)
        self._starts = np.array([places[members].min() for members in bins[1:]])
        self._values = [values[members] for members in bins]

    def draw(self, place: float, random: np.random.Generator) -> float:
        values = self._values[int(np.searchsorted(self._starts, place, side="right"))]
        return float(values[random.integers(len(values))])
