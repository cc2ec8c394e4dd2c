"""Latencies of the last minutes, counted in narrow bins: a percentile costs the same after a million tokens."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator, Sequence

SMALLEST = 1e-5  # seconds; what is shorter counts as this
RATIO = 1.02  # of a bin's end to its start: a percentile is off by one percent at most
NUM_BINS = 1024  # up to 6400 seconds; what is longer counts as this
_PER_LOG = 1 / math.log(RATIO)


class LatencyCounts:
    """How many latencies fell into each bin."""

    def __init__(self, counts: dict[int, int] | None = None) -> None:
        self._counts = dict(sorted(counts.items())) if counts else {}
        self.total = sum(self._counts.values())

    def percentile(self, percent: float) -> float | None:
        """Seconds: the smallest latency that `percent` of 100 do not exceed (nearest rank); None without any."""
        rank = max(1, math.ceil(percent / 100 * self.total))
        for bin, count in self._counts.items():
            rank -= count
            if rank <= 0:
                return _middle(bin)
        return None

    def histogram(self, edges: Sequence[float]) -> list[int]:
        """How many lie below edges[0], from edges[0] to edges[1], ..., at or above the last: one more than edges."""
        heights = [0] * (len(edges) + 1)
        column = 0
        for bin, count in self._counts.items():
            while column < len(edges) and _middle(bin) >= edges[column]:
                column += 1
            heights[column] += count
        return heights

    def range(self) -> tuple[float, float] | None:
        """The shortest and the longest, in seconds."""
        if not self._counts:
            return None
        bins = list(self._counts)
        return _middle(bins[0]), _middle(bins[-1])


class LatencyWindow:
    """Latencies with the second in which they ended, kept for `span` seconds."""

    def __init__(self, span: int = 600) -> None:
        self.span = span
        self._seconds: deque[tuple[int, dict[int, int]]] = deque()

    def add(self, time: float, latency: float, count: int = 1) -> None:
        """`count` latencies of as many seconds, which ended at `time`."""
        second = math.floor(time)
        if not self._seconds or self._seconds[-1][0] < second:
            self._seconds.append((second, {}))
            while self._seconds[0][0] <= second - self.span:
                self._seconds.popleft()
        counts = self._seconds[-1][1]  # a straggler counts with the newest
        bin = _bin(latency)
        counts[bin] = counts.get(bin, 0) + count

    def counts(self, now: float, window: float) -> LatencyCounts:
        """Those of the last `window` seconds, to the second."""
        merged: dict[int, int] = {}
        for second, counts in reversed(self._seconds):
            if second <= now - window - 1:
                break
            for bin, count in counts.items():
                merged[bin] = merged.get(bin, 0) + count
        return LatencyCounts(merged)

    def series(self, now: float, window: int, percent: float) -> list[float | None]:
        """A percentile of each of the last `window` seconds, the oldest first; None for one without latencies."""
        first = math.floor(now) - window + 1
        values: list[float | None] = [None] * window
        for second, counts in self._from(first):
            if second < first + window:
                values[second - first] = LatencyCounts(counts).percentile(percent)
        return values

    def clear(self) -> None:
        self._seconds.clear()

    def _from(self, first: int) -> Iterator[tuple[int, dict[int, int]]]:
        for item in reversed(self._seconds):
            if item[0] < first:
                return
            yield item


def _bin(latency: float) -> int:
    if latency <= SMALLEST:
        return 0
    return min(int(math.log(latency / SMALLEST) * _PER_LOG), NUM_BINS - 1)


def _middle(bin: int) -> float:
    return SMALLEST * math.exp((bin + 0.5) / _PER_LOG)
