"""TTFT, ITL and load of the last seconds, as lines of segments that fit a size."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from rich.segment import Segment
from rich.style import Style

from cudaprefill.client.engine_view import EngineView
from cudaprefill.client.latency_window import LatencyCounts, LatencyWindow
from cudaprefill.protocol.itl_target import itl_target_number

from ..cells import fit, percent
from ..charts import bars, nice_ceiling, one_two_five, resample, spark
from ..figures import milliseconds
from ..glyphs import Glyphs

PERCENTILES = (50, 90, 99)
AXIS = 9  # cells left of a chart
HISTOGRAM = 34  # cells
LEAST_CHART = 3  # rows

Segments = list[Segment]


@dataclass
class LatencyLines:
    """What one drawing needs. `style` names a component class of the pane."""

    view: EngineView
    now: float
    window: int  # seconds
    of_ttft: bool  # whether the chart is of TTFT, not of ITL
    glyphs: Glyphs
    style: Callable[[str], Style]

    @property
    def target(self) -> float | None:
        """Seconds."""
        target = None if self.view.settings is None else itl_target_number(self.view.settings.itl_target_ms)
        return target / 1e3 if target else None

    @property
    def _spark_levels(self) -> str:
        """Without the full cell, so that a line's peaks do not touch the line above."""
        return self.glyphs.levels[:-1]

    def lines(self, width: int, height: int) -> list[Segments]:
        """At most `height` lines of at most `width` cells: what matters most comes first."""
        itl, ttft = self.view.itl.counts(self.now, self.window), self.view.ttft.counts(self.now, self.window)
        lines = [
            self._figures("TTFT", ttft, self.view.ttft, "answers", None, width),
            self._figures("ITL", itl, self.view.itl, "gaps", self.target, width),
            *self._load(width),
        ]
        left = height - len(lines) - 1
        if left >= LEAST_CHART:
            lines += self._charts(ttft if self.of_ttft else itl, width, left)
        return lines[:height]

    def _figures(
        self, name: str, counts: LatencyCounts, window: LatencyWindow, what: str, target: float | None, width: int
    ) -> Segments:
        label, plain = self.style("label"), self.style("figure")
        line = [Segment(f" {name:<5}", self.style("name"))]
        left = width - 6
        columns = [p for p in PERCENTILES if p != 90 or width >= 52]
        for percentile in columns:
            value = counts.percentile(percentile)
            late = target is not None and value is not None and value > target
            text = fit("-" if value is None else milliseconds(value), 9, "right")
            line += [Segment(f"p{percentile}", label), Segment(text, self.style("late") if late else plain)]
            line.append(Segment("! " if late else "  ", self.style("late")))
            left -= 14
        if width >= 68:
            line.append(Segment(f"{counts.total:>7} {what:<8}", label))
            left -= 16
        if left >= 10:
            series = window.series(self.now, self.window, 99)
            line.append(Segment(spark(series, left - 1, self._spark_levels), self.style("spark")))
        return line

    def _load(self, width: int) -> list[Segments]:
        """Throughput, queue and KV, each with its last seconds; on one line where there is room."""
        view = self.view
        seconds = view.history.seconds(self.now, self.window)
        output, prompt = view.history.rates(self.now)
        pool = view.pool
        total = max(pool.free + pool.cached + pool.used, 1) if pool is not None else 1
        share = pool.used / total if pool is not None else None
        unit = "tok/s" if width >= 46 else "/s"
        cells = [
            ("out", f"{output:>6.0f} {unit}", [float(s.output_tokens) for s in seconds], None),
            ("prefill", f"{prompt:>6.0f} {unit}", [float(s.prompt_tokens) for s in seconds], None),
            ("queue", f"{view.num_waiting:>4}", [float(s.waiting) for s in seconds], None),
            ("KV", percent(share), [float(s.used_blocks) for s in seconds], float(total)),
        ]
        per_line = 4 if width >= 96 else 2
        lines: list[Segments] = []
        for start in range(0, 4, per_line):
            line: Segments = []
            for name, text, values, top in cells[start : start + per_line]:
                room = width // per_line
                line += [Segment(f" {name} ", self.style("label")), Segment(text, self.style("figure"))]
                left = room - len(name) - 2 - len(text)
                if left >= 5:
                    line.append(Segment(f" {spark(values, left - 2, self._spark_levels, top)} ", self.style("spark")))
                else:
                    line.append(Segment(" " * left))
            lines.append(line)
        return lines

    # --- Charts ---

    def _charts(self, counts: LatencyCounts, width: int, rows: int) -> list[Segments]:
        beside = width >= 2 * HISTOGRAM + 4
        chart_width = width - HISTOGRAM - 2 if beside else width
        name = "TTFT" if self.of_ttft else "ITL"
        title = f" {name} p99 of each second, the last {self.window} s"
        head = [Segment(fit(title, chart_width), self.style("label"))]
        chart = self._history(chart_width, rows)
        if beside:
            head.append(Segment(f"  {name}s by size", self.style("label")))
            for line, more in zip(chart, self._histogram(counts, HISTOGRAM, rows), strict=True):
                line.append(Segment("  "))
                line += more
        return [head, *chart]

    def _history(self, width: int, rows: int) -> list[Segments]:
        window, target = (self.view.ttft, None) if self.of_ttft else (self.view.itl, self.target)
        values = resample(window.series(self.now, self.window, 99), width - AXIS - 1)
        top = nice_ceiling(max((v for v in (*values, target) if v is not None), default=0.0) or 0.001)
        target_row = rows - 1 - min(int(target / top * rows), rows - 1) if target is not None else -1
        late = [target is not None and value is not None and value > target for value in values]
        lines = []
        for row, text in enumerate(bars(values, rows, self.glyphs.levels, top)):
            at_target = row == target_row and target is not None
            axis = milliseconds(top) if row == 0 else "0" if row == rows - 1 else ""
            if at_target and target is not None:
                axis = milliseconds(target)
            line = [Segment(f"{axis:>{AXIS - 1}} ", self.style("target" if at_target else "label"))]
            line += self._row_cells(text, late, at_target)
            line.append(Segment(" "))
            lines.append(line)
        return lines

    def _row_cells(self, text: str, late: list[bool], at_target: bool) -> Segments:
        """Runs of cells of one style: good, late, or the target line where no bar covers it."""
        segments: Segments = []
        run, run_style = "", ""
        for cell, is_late in zip(text, late, strict=True):
            style = "late" if is_late else "good"
            if cell == " ":
                cell, style = (self.glyphs.target, "target") if at_target else (" ", "good")
            if style != run_style and run:
                segments.append(Segment(run, self.style(run_style)))
                run = ""
            run, run_style = run + cell, style
        if run:
            segments.append(Segment(run, self.style(run_style)))
        return segments

    def _histogram(self, counts: LatencyCounts, width: int, rows: int) -> list[Segments]:
        """A bar for each 1-2-5 step that has latencies near it; the shortest share one where rows are few."""
        span = counts.range()
        if span is None:
            return [[] for _ in range(rows)]
        edges = one_two_five(*span)[1:][-rows:]
        heights = counts.histogram(edges[:-1])
        most = max(heights)
        target = None if self.of_ttft else self.target
        cells = width - 19
        lines: list[Segments] = []
        for edge, height in zip(edges, heights, strict=True):
            late = target is not None and edge > target * (1 + 1e-9)
            length = round(height / most * cells) if height else 0
            bar = self.glyphs.fills[0] * max(length, 1 if height else 0)
            lines.append(
                [
                    Segment(f" < {fit(milliseconds(edge), 8, 'right')} ", self.style("label")),
                    Segment(bar, self.style("late" if late else "good")),
                    Segment(f" {height}" if height else "", self.style("label")),
                ]
            )
        return lines + [[] for _ in range(rows - len(lines))]
