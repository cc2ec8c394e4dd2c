"""Figures as glyphs."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cudaprefill_tui.charts import bars, nice_ceiling, one_two_five, resample, spark
from cudaprefill_tui.glyphs import ASCII, UNICODE

VALUES = st.lists(st.none() | st.floats(0, 1e6), max_size=80)


@given(VALUES, st.integers(0, 100))
def test_resampling_keeps_order_and_no_peak_is_lost(values: list[float | None], columns: int) -> None:
    cells = resample(values, columns)
    assert len(cells) == columns
    known = [value for value in values if value is not None]
    if columns and len(values) >= 1:
        assert set(cells) <= {*values, None}
        if columns <= len(values) and known:
            assert max(cell for cell in cells if cell is not None) == max(known)


@given(VALUES, st.integers(0, 60), st.sampled_from([UNICODE.levels, ASCII.levels]))
def test_a_sparkline_has_its_width_and_shows_all_that_is_above_zero(
    values: list[float | None], columns: int, levels: str
) -> None:
    line = spark(values, columns, levels)
    assert len(line) == columns
    for cell, value in zip(line, resample(values, columns), strict=True):
        assert (cell != levels[0]) == (value is not None and value > 0)


@given(st.lists(st.none() | st.floats(0, 100), max_size=40), st.integers(1, 8))
def test_bars_stand_on_the_floor_and_are_as_high_as_their_value(values: list[float | None], rows: int) -> None:
    levels = UNICODE.levels
    chart = bars(values, rows, levels, 100.0)
    assert [len(line) for line in chart] == [len(values)] * rows
    for column, value in enumerate(values):
        heights = [levels.index(chart[row][column]) for row in reversed(range(rows))]
        assert heights == sorted(heights, reverse=True)
        assert abs(sum(heights) - (value or 0) / 100 * rows * 8) <= 1


@pytest.mark.parametrize(("value", "ceiling"), [(0.0, 1.0), (0.03, 0.05), (1.0, 1.0), (2.1, 5.0), (70.0, 100.0)])
def test_a_scale_ends_at_a_round_number(value: float, ceiling: float) -> None:
    assert nice_ceiling(value) == pytest.approx(ceiling)


@given(st.floats(1e-5, 1e3), st.floats(1, 1e4))
def test_steps_enclose_what_they_are_of(low: float, factor: float) -> None:
    edges = one_two_five(low, low * factor)
    assert edges == sorted(edges)
    assert edges[0] <= low < edges[1]
    assert edges[-1] > low * factor
    assert edges[-2] <= low * factor or len(edges) == 2
