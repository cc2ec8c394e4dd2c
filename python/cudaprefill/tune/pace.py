"""How fast a machine was in the course of a run, told apart from what the work of its steps costs."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from cudaprefill.tune.least_squares import fit_relative, nonnegative_least_squares

Array = NDArray[np.float64]

_NEIGHBOURS = 8  # steps before a step and as many behind it, that tell with it how fast the machine was
_FARTHEST = 1.0  # seconds from a step, beyond which its neighbours tell nothing
_ROUNDS = 8
_LEAST_DEVIATION = 1e-3  # from neighbours that is taken for chance
LEAST_SHARE = 1e-3  # of what a step took, that it must cost: it is divided by, and there are logarithms of it


class Pace:
    """A machine that others use, or that grows warm, is slow for a while, and then every step is, of whatever kind.

    starts: of the steps, in seconds from the first, ascending.
    of_steps: by what the usual time of each is to be multiplied.
    """

    def __init__(self, starts: Array, of_steps: Array) -> None:
        self.of_steps = of_steps
        self._starts = starts
        self._span = float(starts[-1]) or 1.0

    def at(self, time: float) -> float:
        """A run that goes on for longer begins anew."""
        return float(np.interp(time % self._span, self._starts, self.of_steps))


def fit_cost_and_pace(features: Array, durations: Array, starts: Array) -> tuple[Array, Pace]:
    """Costs x >= 0 so that durations are about features @ x, times a pace that changes slowly.

    features [N, F], durations [N] > 0, starts [N] ascending.

    A slow machine has more requests at once. Without the pace, what comes in company would look expensive. So a step is
    compared with its neighbours: the more of what steps are off by is common to neighbours, the less it counts how one
    compares with all of the run. (In the logarithm, the pace is the random effect of a panel: P. Balestra and
    M. Nerlove, Pooling Cross Section and Time Series Data, 1966.)
    """
    neighbours = _Neighbours(starts)
    costs, weights = fit_relative(features, durations), np.ones(len(durations))
    for _ in range(_ROUNDS):
        usual = np.maximum(features @ costs, LEAST_SHARE * durations)
        off = np.log(durations / usual)
        common = neighbours.mean(off, weights)
        own, shared = max(_deviation(off - common), _LEAST_DEVIATION), _deviation(common)
        weights = 1 / (1 + ((off - common) / (2 * own)) ** 2)
        between = max(0.0, shared**2 - own**2 / np.median(neighbours.counts))
        common_share = 1 - np.sqrt(own**2 / (neighbours.counts * between + own**2))
        # off is linear around these costs: by relative @ (x - costs), and relative @ costs is 1.
        relative, target = features / usual[:, None], 1 + off
        roots = np.sqrt(weights)
        costs = nonnegative_least_squares(
            roots[:, None] * (relative - common_share[:, None] * neighbours.mean(relative, weights)),
            roots * (target - common_share * neighbours.mean(target, weights)),
        )
    usual = np.maximum(features @ costs, LEAST_SHARE * durations)
    return costs, Pace(starts, np.exp(neighbours.mean(np.log(durations / usual), weights)))


class _Neighbours:
    """Of each step, itself included."""

    def __init__(self, starts: Array) -> None:
        places = np.arange(len(starts))
        self._first = np.maximum(places - _NEIGHBOURS, np.searchsorted(starts, starts - _FARTHEST))
        self._end = np.minimum(places + _NEIGHBOURS + 1, np.searchsorted(starts, starts + _FARTHEST, side="right"))
        self.counts = self._end - self._first

    def mean(self, values: Array, weights: Array) -> Array:
        """values [N] or [N, F], weights [N]: the weighted mean around each step."""
        column = weights if values.ndim == 1 else weights[:, None]
        mean: Array = self._sum(values * column) / self._sum(column)
        return mean

    def _sum(self, values: Array) -> Array:
        sums = np.concatenate((np.zeros((1, *values.shape[1:])), np.cumsum(values, axis=0)))
        difference: Array = sums[self._end] - sums[self._first]
        return difference


def _deviation(values: Array) -> float:
    """The standard deviation of values of which a few may be anything."""
    return 1.4826 * float(np.median(np.abs(values - np.median(values))))
