"""Latencies in bins of a second: percentiles are those of the samples, to one percent."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cudaprefill.client.latency_window import LatencyCounts, LatencyWindow

LATENCIES = st.floats(1e-5, 3000)


def nearest_rank(values: list[float], percent: float) -> float:
    return sorted(values)[max(1, math.ceil(percent / 100 * len(values))) - 1]


@given(st.lists(LATENCIES, min_size=1, max_size=50), st.sampled_from([0, 1, 50, 90, 99, 100]))
def test_a_percentile_is_within_one_percent_of_the_nearest_rank(values: list[float], percent: float) -> None:
    window = LatencyWindow()
    for value in values:
        window.add(10.5, value)
    assert window.counts(10.9, 60).percentile(percent) == pytest.approx(nearest_rank(values, percent), rel=0.011)


@given(st.lists(st.tuples(st.integers(0, 100), LATENCIES), max_size=50), st.integers(1, 60))
def test_a_window_holds_the_latencies_of_its_seconds(samples: list[tuple[int, float]], seconds: int) -> None:
    samples.sort()
    window = LatencyWindow()
    for time, value in samples:
        window.add(time + 0.5, value)
    inside = sum(100 - seconds <= time for time, _ in samples)
    assert window.counts(100.9, seconds).total == inside


def test_a_window_forgets_what_is_older_than_its_span() -> None:
    window = LatencyWindow(span=5)
    for second in range(20):
        window.add(second, 1.0)
    assert window.counts(19, 1000).total == 5


def test_an_empty_window_has_no_percentile() -> None:
    assert LatencyWindow().counts(1, 60).percentile(50) is None
    assert LatencyCounts().range() is None


@given(st.lists(LATENCIES, max_size=50), st.lists(st.floats(1e-4, 1000), min_size=1, max_size=6, unique=True))
def test_a_histogram_counts_every_latency_once(values: list[float], edges: list[float]) -> None:
    edges.sort()
    window = LatencyWindow()
    for value in values:
        window.add(1, value)
    heights = window.counts(1, 60).histogram(edges)
    assert sum(heights) == len(values)
    # A latency may lie on the other side of an edge that is within its bin.
    surely_below = sum(value < edges[0] * 0.97 for value in values)
    maybe_below = sum(value < edges[0] * 1.03 for value in values)
    assert surely_below <= heights[0] <= maybe_below


def test_a_series_has_a_value_for_each_second_with_latencies() -> None:
    window = LatencyWindow()
    window.add(7.2, 0.1)
    window.add(9.9, 0.2, count=3)
    series = window.series(10.0, 5, 50)
    assert series == [None, pytest.approx(0.1, rel=0.011), None, pytest.approx(0.2, rel=0.011), None]
