"""The pictures of docs/tuning.md: what each result looks like."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

from benchmarks.page_parts import ROOT
from cudaprefill.protocol.itl_target import itl_target_text
from cudaprefill.tune.chart import COLOURS, Axis, grid, tick

PICTURES = ROOT / "docs" / "tuning"
WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 680, 420, 72, 650, 56, 360
GOALS = (0.1, 0.2)  # of a prediction: at p50, and at p99


@dataclass(frozen=True)
class Point:
    """y in seconds, and mostly x too."""

    x: float
    y: float
    label: str
    colour: str = COLOURS[0]


class AxisFromZero:
    """Linear, so that heights can be compared."""

    def __init__(self, values: Sequence[float], begin: float, end: float) -> None:
        self._step = next(step for step in (0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, math.inf) if max(values) < 6 * step)
        self._high, self.begin, self.end = 1.15 * max(values), begin, end

    def place(self, value: float) -> float:
        return self.begin + value / self._high * (self.end - self.begin)

    def ticks(self) -> list[float]:
        return [self._step * count for count in range(7) if self._step * count <= self._high]


def scatter(
    title: str,
    names: tuple[str, str],
    points: Sequence[Point],
    *,
    diagonal: bool = False,
    legend: Sequence[tuple[str, str]] = (),
    across_tick: Callable[[float], str] = tick,
) -> str:
    """SVG. `names`: of the axes. `legend`: colour and text. `across_tick`: what a value of x is called.

    diagonal: of equal values, with both GOALS, and both axes logarithmic; else y is linear.
    """
    both = [value for point in points for value in (point.x, point.y)]
    across = Axis(both if diagonal else [point.x for point in points], LEFT, RIGHT)
    up = Axis(both, BOTTOM, TOP) if diagonal else AxisFromZero([point.y for point in points], BOTTOM, TOP)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" '
        'font-size="12">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
        f'<text x="{LEFT}" y="24" font-size="15">{escape(title)}</text>',
        f'<text x="{(LEFT + RIGHT) / 2}" y="{HEIGHT - 16}" text-anchor="middle">{escape(names[0])}</text>',
        f'<text x="18" y="{HEIGHT / 2}" transform="rotate(-90 18 {HEIGHT / 2})" text-anchor="middle">'
        f"{escape(names[1])}</text>",
        *grid(across, up, across_tick),
    ]
    if diagonal:
        parts += _bands(min(both), max(both), across.place, up.place)
    for point in points:
        x, y = across.place(point.x), up.place(point.y)
        parts.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="5" fill="{point.colour}"/>')
        at_the_right = x > (LEFT + RIGHT) / 2
        anchor, shift = ("end", -10) if at_the_right else ("start", 10)
        parts.append(f'<text x="{x + shift:.1f}" y="{y + 4:.1f}" text-anchor="{anchor}">{escape(point.label)}</text>')
    for index, (colour, text) in enumerate(legend):
        y = TOP + 18 * (index + 1)
        parts.append(f'<circle cx="{LEFT + 14}" cy="{y - 4}" r="5" fill="{colour}"/>')
        parts.append(f'<text x="{LEFT + 26}" y="{y}">{escape(text)}</text>')
    return "\n".join([*parts, "</svg>"]) + "\n"


def _bands(low: float, high: float, x: Callable[[float], float], y: Callable[[float], float]) -> list[str]:
    lines = [(1.0, "#888888", "")]
    for goal in GOALS:
        dashes = "6 3" if goal == GOALS[0] else "2 3"
        lines += [(1 + goal, "#bbbbbb", dashes), (1 - goal, "#bbbbbb", dashes)]
    return [
        f'<line x1="{x(low):.1f}" y1="{y(low * factor):.1f}" x2="{x(high):.1f}" y2="{y(high * factor):.1f}" '
        f'stroke="{colour}" stroke-dasharray="{dashes}"/>'
        for factor, colour, dashes in lines
    ]


def target_picture(figures: dict[str, Any]) -> str:
    points = []
    for row in figures["settings"]:
        target = row["itl_target_ms"] or None
        label = f"budget {row['max_num_batched_tokens']}" if target is None else f"target {itl_target_text(target)}"
        points.append(Point(row["itl_p99_ms"] / 1e3, row["ttft_s"], label, COLOURS[3 if target else 0]))
    return scatter(
        "A prompt of 3,200 tokens arrives beside four chats",
        ("p99 of the chats' ITL meanwhile", "TTFT of the prompt"),
        points,
    )


def predict_picture(figures: dict[str, Any]) -> str:
    kinds = [(kind, percentile) for kind in ("ttft", "itl") for percentile in ("p50", "p99")]
    colours = {kind: COLOURS[index] for index, kind in enumerate(kinds)}
    points = [
        Point(run["measured"][kind][percentile], run["predicted"][kind][percentile], "", colours[kind, percentile])
        for run in figures["runs"]
        for kind, percentile in kinds
    ]
    legend = [(colours[kind], f"{kind[0].upper()} {kind[1]}") for kind in kinds]
    title = "Replay beside the run itself, with 10 % (dashes) and 20 % (dots)"
    return scatter(title, ("measured", "predicted"), points, diagonal=True, legend=legend)


def prefix_picture(figures: dict[str, Any]) -> str:
    colours = {"cold_s": COLOURS[0], "cached_s": COLOURS[3]}
    points = [
        Point(text["tokens"], text[kind], "", colour) for text in figures["texts"] for kind, colour in colours.items()
    ]
    return scatter(
        f"A question of {figures['question']} tokens behind a shared text",
        ("tokens of the text", "TTFT"),
        points,
        legend=[(COLOURS[0], "the text is new"), (COLOURS[3], "the text is cached")],
        across_tick=lambda tokens: f"{tokens:,g}",
    )


def presets_picture(figures: dict[str, Any]) -> str:
    points = [Point(row["itl_p99_ms"] / 1e3, row["ttft_s"], row["preset"]) for row in figures["presets"]]
    return scatter(
        "A prompt of 3,200 tokens arrives beside four chats, by preset",
        ("p99 of the chats' ITL meanwhile", "TTFT of the prompt"),
        points,
    )
