"""A screen that renders only the lines that changed, all that changed in one turn of the event loop together.

Textual's compositor renders, for every partial update, all lines of all widgets between the first and the last line
that changed, and cuts them at the edges of all widgets. With panes side by side that change ten times a second, that is
several times the work of the lines that changed. And before, each widget tells itself, then the screen, then a timer,
by a message each, that there is something to draw.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import Any, NamedTuple

from rich.console import Console, ConsoleOptions, RenderResult
from textual._compositor import ChopsUpdate, Compositor, CompositorUpdate
from textual.geometry import Region
from textual.screen import Screen, ScreenResultType
from textual.strip import Strip
from textual.widget import Widget


class Patch(NamedTuple):
    """Cells start .. end of line `y` of the screen, out of a strip that begins at column `x`."""

    y: int
    x: int
    strip: Strip
    start: int
    end: int


class PatchesUpdate(CompositorUpdate):
    def __init__(self, patches: Sequence[Patch]) -> None:
        self.patches = patches

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield from ()


class SparseScreen(Screen[ScreenResultType]):
    """Belongs to a SparseApp, which knows what to do with patches."""

    def __init__(self, *arguments: Any, **settings: Any) -> None:
        super().__init__(*arguments, **settings)
        self._compositor = SparseCompositor()
        self._draws_soon = False

    def draw_soon(self, widget: Widget, regions: Iterable[Region]) -> None:
        """Draws regions of a widget's content at the end of this turn of the event loop: before the next frame."""
        widget._set_dirty(*regions)
        self._dirty_widgets.add(widget)
        if not self._draws_soon:
            self._draws_soon = True
            asyncio.get_running_loop().call_soon(self._draw)

    def _draw(self) -> None:
        self._draws_soon = False
        if not self.is_running or not self.is_current or self.app._batch_count:
            return
        if self._layout_required or self._scroll_required or self._repaint_required:
            self.check_idle()  # of what is drawn now, much would be drawn again
            return
        try:
            with self.app._context():
                self._compositor.update_widgets(self._dirty_widgets)
                self._compositor_refresh()
        except Exception as error:
            self.app._handle_exception(error)


class _Piece(NamedTuple):
    """Cells start .. end of line `y` of the screen, which belong to one widget."""

    y: int
    start: int
    end: int


class SparseCompositor(Compositor):
    def render_partial_update(self) -> ChopsUpdate | PatchesUpdate | None:  # type: ignore[override]
        screen = self.size.region
        regions = [region.intersection(screen) for region in self._dirty_regions]
        self._dirty_regions.clear()
        patches: list[Patch] = []
        for widget, pieces in self._pieces(self._regions_to_spans(regions)).items():
            region, clip = self.visible_widgets[widget]
            patches += _render(widget, region, region.intersection(clip), pieces)
        return PatchesUpdate(patches) if patches else None

    def _pieces(self, spans: Iterable[tuple[int, int, int]]) -> dict[Widget, list[_Piece]]:
        """To which widgets the cells belong; each widget's pieces from the top to the bottom."""
        pieces: dict[Widget, list[_Piece]] = {}
        for y, start, end in spans:
            left = [(start, end)]
            for widget, cropped, _ in self.layers_visible[y]:  # from the front to the back
                rest = []
                for first, last in left:
                    begin, stop = max(first, cropped.x), min(last, cropped.right)
                    if begin >= stop:
                        rest.append((first, last))
                        continue
                    pieces.setdefault(widget, []).append(_Piece(y, begin, stop))
                    rest += [span for span in ((first, begin), (stop, last)) if span[0] < span[1]]
                left = rest
                if not left:
                    break
        return pieces


def _render(widget: Widget, region: Region, seen: Region, pieces: list[_Piece]) -> list[Patch]:
    """`seen`: what can be seen of the widget's region."""
    patches = []
    for _, run in groupby(enumerate(sorted({piece.y for piece in pieces})), lambda item: item[1] - item[0]):
        rows = [y for _, y in run]
        crop = Region(seen.x - region.x, rows[0] - region.y, seen.width, len(rows))
        strips = dict(zip(rows, widget.render_lines(crop), strict=True))
        patches += [Patch(y, seen.x, strips[y], start, end) for y, start, end in pieces if y in strips]
    return patches
