"""Replayed settings beside each other: a table, JSON, and a picture of what TTFT costs in ITL."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

from cudaprefill.config import flags_of
from cudaprefill.tune.chart import COLOURS, Axis, grid
from cudaprefill.tune.figures import Figures

Settings = dict[str, Any]  # by SchedulerConfig's names


@dataclass(frozen=True)
class Row:
    settings: Settings  # what sets it apart
    figures: Figures
    label: str = ""  # for what is no setting: "recorded"

    @property
    def name(self) -> str:
        return self.label or flags_of(self.settings) or "as recorded"


def table(rows: Sequence[Row]) -> str:
    head = ["TTFT p50", "p90", "p99", "ITL p50", "p90", "p99", "tok/s", "hits", "preempted", "refused"]
    cells = [[row.name, *_cells(row.figures)] for row in rows]
    lines = [["", *head], *cells]
    widths = [max(len(line[column]) for line in lines) for column in range(len(lines[0]))]
    return "\n".join(
        "  ".join(
            cell.ljust(width) if column == 0 else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    )


def _cells(figures: Figures) -> list[str]:
    times = [_time(value) for kind in (figures.ttft, figures.itl) for value in kind.values()]
    throughput, hits = f"{figures.output_tokens_per_second:,.1f}", f"{figures.hit_rate:.1%}"
    return [*times, throughput, hits, str(figures.preemptions), str(figures.refused)]


def _time(seconds: float) -> str:
    return f"{seconds * 1e3:.1f} ms" if seconds < 1 else f"{seconds:.2f} s"


def as_json(rows: Sequence[Row], **more: Any) -> str:
    listed = [{"name": row.name, "settings": row.settings, **row.figures.as_dict()} for row in rows]
    return json.dumps({"settings": listed, **more}, indent=2) + "\n"


WIDTH, HEIGHT, MARGIN = 760, 460, 64


def picture(rows: Sequence[Row], title: str) -> str:
    """SVG: a line a setting, from its p50 over its p90 to its p99, ITL to the right and TTFT upwards, logarithmic."""
    points = [[(row.figures.itl[name], row.figures.ttft[name]) for name in row.figures.ttft] for row in rows]
    across = Axis([max(itl, 1e-6) for line in points for itl, _ in line], MARGIN, WIDTH - 24)
    up = Axis([max(ttft, 1e-6) for line in points for _, ttft in line], HEIGHT - MARGIN, 48 + 16 * len(rows))
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" '
        'font-family="sans-serif" font-size="12">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
        f'<text x="{WIDTH / 2}" y="24" text-anchor="middle" font-size="15">{escape(title)}</text>',
        f'<text x="{WIDTH / 2}" y="{HEIGHT - 12}" text-anchor="middle">ITL</text>',
        f'<text x="16" y="{HEIGHT / 2}" transform="rotate(-90 16 {HEIGHT / 2})" text-anchor="middle">TTFT</text>',
        *grid(across, up),
    ]
    for index, (row, line) in enumerate(zip(rows, points, strict=True)):
        colour = COLOURS[index % len(COLOURS)]
        places = [(across.place(max(itl, 1e-6)), up.place(max(ttft, 1e-6))) for itl, ttft in line]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
        parts.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="1.5"/>')
        parts += [
            f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{radius}" fill="{colour}"/>'
            for (x, y), radius in zip(places, (5, 4, 3), strict=True)
        ]
        y = 44 + 16 * index
        parts.append(f'<rect x="{MARGIN}" y="{y - 9}" width="10" height="10" fill="{colour}"/>')
        parts.append(f'<text x="{MARGIN + 16}" y="{y}">{escape(row.name)}</text>')
    return "\n".join([*parts, "</svg>"]) + "\n"
