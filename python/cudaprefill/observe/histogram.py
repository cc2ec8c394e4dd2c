"""Counts of values by size, in the shape that Prometheus wants."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from itertools import accumulate, pairwise

from prometheus_client.utils import floatToGoString


class Histogram:
    """How many values are at most bounds[0], above that and at most bounds[1], ..., above the last.

    Not locked, unlike prometheus_client's: one thread counts and reads.
    """

    __slots__ = ("bounds", "counts", "sum")

    def __init__(self, bounds: Sequence[float]) -> None:
        """Raises ValueError if `bounds` do not ascend."""
        if any(lower >= upper for lower, upper in pairwise(bounds)):
            raise ValueError(f"the bounds of a histogram must ascend, got {list(bounds)}")
        self.bounds = tuple(map(float, bounds))
        self.counts = [0] * (len(self.bounds) + 1)
        self.sum = 0.0

    def observe(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.sum += value

    def observe_many(self, values: Iterable[float]) -> None:
        bounds, counts = self.bounds, self.counts
        total = 0.0
        for value in values:
            counts[bisect_left(bounds, value)] += 1
            total += value
        self.sum += total

    def cumulative(self) -> list[tuple[str, float]]:
        """(upper bound, how many values are at most that), "+Inf" last."""
        labels = [*map(floatToGoString, self.bounds), "+Inf"]
        return list(zip(labels, accumulate(self.counts), strict=True))
