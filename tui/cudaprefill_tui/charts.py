"""Figures over time as glyphs: sparklines and bar charts."""

from __future__ import annotations

import math
from collections.abc import Sequence

Values = Sequence[float | None]


def resample(values: Values, columns: int) -> list[float | None]:
    """`columns` values over the same time: the largest of those that fall together, repeated where there are fewer."""
    if not values or columns <= 0:
        return [None] * max(columns, 0)
    result: list[float | None] = []
    for column in range(columns):
        start = column * len(values) // columns
        end = max((column + 1) * len(values) // columns, start + 1)
        known = [value for value in values[start:end] if value is not None]
        result.append(max(known) if known else None)
    return result


def spark(values: Values, columns: int, levels: str, top: float | None = None) -> str:
    """One line of `columns` cells; what is above 0 has at least the lowest glyph. top: what the highest stands for."""
    cells = resample(values, columns)
    top = top or max((value for value in cells if value is not None), default=0.0)
    return "".join(levels[_level(value, top, len(levels) - 1)] for value in cells)


def bars(values: Values, rows: int, levels: str, top: float) -> list[str]:
    """A chart of `rows` lines, the uppermost first, a cell a value."""
    steps = len(levels) - 1
    heights = [_level(value, top, rows * steps) for value in values]
    return [
        "".join(levels[min(max(height - row * steps, 0), steps)] for height in heights)
        for row in range(rows - 1, -1, -1)
    ]


def nice_ceiling(value: float) -> float:
    """The least of ..., 0.1, 0.2, 0.5, 1, 2, 5, 10, ... that is not less."""
    if value <= 0:
        return 1.0
    power = 10.0 ** math.floor(math.log10(value))
    return next((power * step for step in (1, 2, 5) if power * step >= value * (1 - 1e-9)), power * 10)


def one_two_five(low: float, high: float) -> list[float]:
    """1-2-5 steps that enclose low .. high, at least two."""
    edges: list[float] = []
    power = math.floor(math.log10(low)) if low > 0 else -5
    if 10.0**power > low > 0:  # a logarithm is rounded, up to the next whole one too
        power -= 1
    while not edges or edges[-1] <= high or len(edges) < 2:
        for step in (1, 2, 5):
            edge = step * 10.0**power
            if edge <= low:
                edges = [edge]
            elif not edges or edges[-1] <= high or len(edges) < 2:
                edges.append(edge)
        power += 1
    return edges


def _level(value: float | None, top: float, steps: int) -> int:
    if value is None or value <= 0 or top <= 0:
        return 0
    return min(max(round(value / top * steps), 1), steps)
