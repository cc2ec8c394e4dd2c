"""What is drawn line by line: only lines that can be seen are made, and only those that changed."""

from __future__ import annotations

from collections.abc import Iterable

from rich.segment import Segment
from rich.style import Style
from textual.geometry import Size
from textual.scroll_view import ScrollView
from textual.strip import Strip

from ..colours import Palette, palette_of
from ..glyphs import UNICODE, Glyphs
from .diffed_lines import DiffedLines


class LineView(DiffedLines, ScrollView, can_focus=True):
    """Lines of which `line(y)` makes one. `message` is shown instead while there is none.

    Subclasses bind the keys that scroll, since they have cursors.
    """

    DEFAULT_CSS = """
    LineView {
        overflow-x: hidden;
        overflow-y: auto;
        scrollbar-gutter: stable;
        scrollbar-size-vertical: 1;
        background: $surface;
        scrollbar-background: $surface;
        scrollbar-background-hover: $surface;
        scrollbar-background-active: $surface;
        scrollbar-color: $border;
        height: 1fr;
    }
    """

    def __init__(self, *, glyphs: Glyphs = UNICODE, id: str | None = None) -> None:
        super().__init__(id=id)
        self.glyphs = glyphs
        self.message = ""
        self._thumb = (0, 0)

    @property
    def num_lines(self) -> int:
        raise NotImplementedError

    @property
    def room(self) -> int:
        """Cells a line has."""
        return self.outer_size.width - self.scrollbar_size_vertical

    def line(self, y: int) -> Strip:
        """Line `y` of `num_lines`, at most `room` cells."""
        raise NotImplementedError

    @property
    def palette(self) -> Palette:
        return palette_of(self.app)

    def over(self, strip: Strip, name: str) -> Strip:
        """The strip with the background and the weight of a component class: for the row of a cursor."""
        style = self.part(name)
        return Strip(
            Segment.apply_style(strip, post_style=Style(bgcolor=style.bgcolor, bold=style.bold)), strip.cell_length
        )

    def visible_line(self, y: int) -> Strip:
        place = y + self.scroll_offset.y
        if self.num_lines == 0:
            return self.message_line(self.message, y)
        return self.line(place) if place < self.num_lines else Strip.blank(self.outer_size.width)

    def redraw_lines(self, lines: Iterable[int]) -> None:
        """Redraws what differs in those of the lines that can be seen."""
        top, height = self.scroll_offset.y, self.outer_size.height
        self.redraw([line - top for line in lines if top <= line < top + height])

    def redraw(self, rows: Iterable[int] | None = None) -> None:
        super().redraw(rows)
        self._show_thumb()

    def resize_lines(self) -> None:
        """To be called when `num_lines` changed, before `redraw`.

        The screen is laid out anew only when a scrollbar comes or goes.
        """
        height, before, shown = self.num_lines, self.virtual_size.height, self.size.height
        if height == before:
            return
        size = Size(1, height)
        if (height > shown) != (before > shown) or not self.show_vertical_scrollbar:
            self.virtual_size = size
            return
        self.set_reactive(LineView.virtual_size, size)
        if height < before:
            self.scroll_to_line(self.scroll_offset.y)

    def watch_scroll_y(self, old_value: float, new_value: float) -> None:
        if round(old_value) != round(new_value):
            self.redraw()

    def watch_show_vertical_scrollbar(self) -> None:
        self.call_after_refresh(self._show_thumb)

    def _show_thumb(self) -> None:
        """Moves the scrollbar's thumb by whole cells: as a history grows, it would move with every line by a little."""
        if not self.show_vertical_scrollbar:
            return
        height, lines = self.size.height, max(self.virtual_size.height, 1)
        thumb = (round(height * height / lines), round(height * self.scroll_y / lines))
        if thumb != self._thumb:
            self._thumb = thumb
            self.vertical_scrollbar.window_virtual_size = lines
            self.vertical_scrollbar.position = self.scroll_y

    def scroll_to_line(self, y: int) -> None:
        """Line `y` becomes the first that is seen, as far as there are lines below it."""
        self.scroll_to(y=min(y, self.max_scroll_y), animate=False, force=True)

    def scroll_to_row(self, row: int) -> None:
        """So far that the row can be seen."""
        top, height = self.scroll_offset.y, max(self.size.height, 1)
        if row < top:
            self.scroll_to_line(row)
        elif row >= top + height:
            self.scroll_to_line(row - height + 1)
