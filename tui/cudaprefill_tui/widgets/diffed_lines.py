"""Widgets drawn line by line that give the screen only lines that differ from what it has."""

from __future__ import annotations

from collections.abc import Iterable

from rich.segment import Segment
from rich.style import Style
from textual.geometry import Region
from textual.strip import Strip
from textual.widget import Widget

from ..cells import wrap_words
from ..sparse_compositor import SparseScreen


class DiffedLines(Widget):
    """Subclasses make lines in `visible_line` and call `redraw` when one may look different.

    They have an opaque background, and neither border, padding nor opacity: lines are shown as they are made.
    """

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self._shown: dict[int, Strip] = {}  # what was last given to the screen
        self._fresh: dict[int, Strip] = {}  # made by `redraw` and not yet given
        self._parts: dict[str, Style] = {}

    def visible_line(self, y: int) -> Strip:
        """Line `y` of those that can be seen."""
        raise NotImplementedError

    def redraw(self, rows: Iterable[int] | None = None) -> None:
        """Redraws what differs, in some of the visible lines or in all."""
        if not self.is_mounted or not self.size:
            return
        base = self.rich_style
        width, height = self.outer_size
        regions = []
        for y in range(height) if rows is None else rows:
            strip = self._finish(self.visible_line(y), base)
            before = self._fresh.get(y) or self._shown.get(y)
            if strip != before:
                self._fresh[y] = strip
                regions.append(Region(0, y, width, 1))
        if not regions:
            return
        screen = self.screen
        if isinstance(screen, SparseScreen):
            screen.draw_soon(self, regions)
        else:
            self.refresh(*regions)

    def render_line(self, y: int) -> Strip:
        strip = self._fresh.pop(y, None)
        if strip is None or strip.cell_length != self.outer_size.width:
            strip = self._finish(self.visible_line(y), self.rich_style)
        self._shown[y] = strip
        return strip

    def render_lines(self, crop: Region) -> list[Strip]:
        """Without the cache that Textual has for what is in a frame: making a line anew costs no more than a look."""
        filters, background = self.get_line_filters(), self.styles.background
        strips = []
        for y in crop.line_range:
            strip = self.render_line(y)
            for line_filter in filters:
                strip = strip.apply_filter(line_filter, background)
            strips.append(strip)
        if crop.column_span != (0, self.outer_size.width):
            return [strip.crop(*crop.column_span) for strip in strips]
        return strips

    def notify_style_update(self) -> None:
        super().notify_style_update()
        self._fresh.clear()
        self._parts.clear()

    def part(self, name: str) -> Style:
        """Style of a component class. Textual forgets it with every redraw; this lasts until styles change."""
        style = self._parts.get(name)
        if style is None:
            style = self._parts[name] = self.get_component_rich_style(name)
        return style

    def message_line(self, message: str, y: int) -> Strip:
        """Line `y` of a widget that has nothing to show but a message, in its middle."""
        width, height = self.size
        lines = wrap_words(message, width - 2)
        place = y - max(0, (height - len(lines)) // 2)
        if not 0 <= place < len(lines):
            return Strip.blank(width)
        return Strip([Segment(lines[place].center(width), Style(dim=True))])

    def _finish(self, strip: Strip, base: Style) -> Strip:
        return strip.adjust_cell_length(self.outer_size.width).apply_style(base)
