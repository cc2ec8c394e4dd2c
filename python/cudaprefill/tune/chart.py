"""What pictures of figures have in common: axes, their grid, the colours."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Protocol

COLOURS = (
    "#4c72b0",
    "#dd8452",
    "#55a868",
    "#c44e52",
    "#8172b3",
    "#937860",
    "#da8bc3",
    "#8c8c8c",
    "#ccb974",
    "#64b5cd",
)


class Axis:
    """Logarithmic, over whole steps of 1, 2, 5, 10 ... around the values."""

    def __init__(self, values: Sequence[float], begin: float, end: float) -> None:
        self.begin, self.end = begin, end
        low, high = math.log10(min(values)), math.log10(max(values))
        self._low, self._high = math.floor(low * 3) / 3, math.ceil(high * 3 + 1e-9) / 3
        if self._high <= self._low:
            self._high = self._low + 1 / 3

    def place(self, value: float) -> float:
        share = (math.log10(value) - self._low) / (self._high - self._low)
        return self.begin + share * (self.end - self.begin)

    def ticks(self) -> list[float]:
        powers = range(math.floor(self._low), math.ceil(self._high) + 1)
        values = [step * 10.0**power for power in powers for step in (1, 2, 5)]
        return [value for value in values if self._low - 1e-9 <= math.log10(value) <= self._high + 1e-9]


def tick(seconds: float) -> str:
    return f"{seconds * 1e3:g} ms" if seconds < 1 else f"{seconds:g} s"


class AnyAxis(Protocol):
    """Where on the picture it begins and ends, and where a value lies on it."""

    begin: float
    end: float

    def place(self, value: float) -> float: ...

    def ticks(self) -> list[float]: ...


def grid(across: AnyAxis, up: AnyAxis, across_tick: Callable[[float], str] = tick) -> list[str]:
    """SVG: a line and a text for each tick of both axes. `across_tick`: what a value of x is called."""
    parts = []
    for value in across.ticks():
        x = across.place(value)
        parts.append(f'<line x1="{x:.1f}" y1="{up.end}" x2="{x:.1f}" y2="{up.begin}" stroke="#e5e5e5"/>')
        parts.append(f'<text x="{x:.1f}" y="{up.begin + 18}" text-anchor="middle">{across_tick(value)}</text>')
    for value in up.ticks():
        y = up.place(value)
        parts.append(f'<line x1="{across.begin}" y1="{y:.1f}" x2="{across.end}" y2="{y:.1f}" stroke="#e5e5e5"/>')
        parts.append(f'<text x="{across.begin - 6}" y="{y + 4:.1f}" text-anchor="end">{tick(value)}</text>')
    return parts
