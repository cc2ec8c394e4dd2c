"""The histogram against prometheus_client's own."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry
from prometheus_client import Histogram as PrometheusHistogram

from cudaprefill.observe.histogram import Histogram

BOUNDS = (0.001, 0.25, 1.0, 2.5, 1e6)
values = st.floats(0, 1e7) | st.sampled_from(BOUNDS)


@given(st.lists(values), st.lists(values))
def test_counts_what_prometheus_client_counts(one_by_one: list[float], at_once: list[float]) -> None:
    ours = Histogram(BOUNDS)
    theirs = PrometheusHistogram("latency", "-", buckets=BOUNDS, registry=CollectorRegistry())
    for value in one_by_one:
        ours.observe(value)
    ours.observe_many(at_once)
    for value in one_by_one + at_once:
        theirs.observe(value)
    (family,) = theirs.collect()
    expected = [(s.labels["le"], s.value) for s in family.samples if s.name == "latency_bucket"]
    assert ours.cumulative() == expected
    assert ours.sum == pytest.approx(sum(one_by_one + at_once))


def test_bounds_that_do_not_ascend_are_refused() -> None:
    with pytest.raises(ValueError, match=r"must ascend, got \[1, 3, 2\]"):
        Histogram([1, 3, 2])
