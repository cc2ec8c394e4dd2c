"""How long people wait: TTFT and ITL as percentiles, history and histogram, and what the engine does meanwhile."""

from __future__ import annotations

from typing import ClassVar

from rich.segment import Segment
from rich.style import Style
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.strip import Strip

from cudaprefill.client.engine_view import EngineView

from ..glyphs import UNICODE, Glyphs
from .diffed_lines import DiffedLines
from .latency_lines import LatencyLines
from .pane import Pane

WINDOWS = (10, 60, 300)  # seconds
DRAW_SECONDS = 0.5  # figures of whole windows that change faster cannot be read
EMPTY = "No tokens yet: ask something, or start a load with F5."


class LatencyPane(Pane):
    TITLE = "Latency"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("w", "next_window", "Next window", tooltip="The last 10, 60 or 300 seconds"),
        Binding("t", "toggle_chart", "TTFT or ITL", tooltip="What the chart shows"),
    ]

    def __init__(self, *, glyphs: Glyphs = UNICODE, id: str | None = None) -> None:
        super().__init__(glyphs=glyphs, id=id)
        self.window = 60
        self.of_ttft = False
        self.figures = LatencyFigures()
        self._view: EngineView | None = None
        self._drawn_at = float("-inf")

    def compose(self) -> ComposeResult:
        yield self.figures

    def on_mount(self) -> None:
        self.app.theme_changed_signal.subscribe(self, lambda _: self.call_after_refresh(self._draw))

    def update_view(self, view: EngineView) -> None:
        now = view.now()
        soon = view is self._view and 0 <= now - self._drawn_at < DRAW_SECONDS
        self._view = view
        if not soon:
            self._draw()

    def action_next_window(self) -> None:
        self.window = WINDOWS[(WINDOWS.index(self.window) + 1) % len(WINDOWS)]
        self._draw()

    def action_toggle_chart(self) -> None:
        self.of_ttft = not self.of_ttft
        self._draw()

    def on_resize(self) -> None:
        self._draw()

    def _draw(self) -> None:
        self.show_title(f"last {self.window} s", "w changes the window", "t: TTFT or ITL")
        view, size = self._view, self.figures.size
        if view is None or not size:
            return
        now = self._drawn_at = view.now()
        if not view.steps and view.ttft.counts(now, self.window).total == 0:
            self.figures.show([])
        else:
            drawing = LatencyLines(view, now, self.window, self.of_ttft, self.glyphs, self.figures.style)
            self.figures.show(drawing.lines(size.width, size.height))


class LatencyFigures(DiffedLines, can_focus=True):
    """The pane's lines."""

    COMPONENT_CLASSES: ClassVar[set[str]] = {
        "latency--name",
        "latency--label",
        "latency--figure",
        "latency--late",
        "latency--good",
        "latency--spark",
        "latency--target",
    }
    DEFAULT_CSS = """
    LatencyFigures { height: 1fr; background: $surface; }
    LatencyFigures > .latency--name { text-style: bold; }
    LatencyFigures > .latency--label { color: $foreground 55%; }
    LatencyFigures > .latency--figure { color: $foreground; }
    LatencyFigures > .latency--late { color: $error; text-style: bold; }
    LatencyFigures > .latency--good { color: $success; }
    LatencyFigures > .latency--spark { color: $primary; }
    LatencyFigures > .latency--target { color: $warning; }
    """

    def __init__(self) -> None:
        super().__init__()
        self._strips: list[Strip] = []

    def style(self, name: str) -> Style:
        return self.part(f"latency--{name}")

    def show(self, lines: list[list[Segment]]) -> None:
        self._strips = [Strip(line) for line in lines]
        self.redraw()

    def visible_line(self, y: int) -> Strip:
        if not self._strips:
            return self.message_line(EMPTY, y)
        return self._strips[y] if y < len(self._strips) else Strip.blank(self.size.width)
