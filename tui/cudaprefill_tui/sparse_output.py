"""An application that sends a terminal only the cells that differ from what it shows.

Textual redraws a changed part of a widget from the widget's left edge on, with the colours of every piece. Over a slow
connection that is several times what is needed: panes change in a few digits a row, fifteen times a second.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.control import Control
from textual._compositor import ChopsUpdate, CompositorUpdate, LayoutUpdate
from textual.app import App, ReturnType
from textual.strip import Strip

from .strip_cells import UNKNOWN, Cell, cells_of, changed_runs, strip_of

if TYPE_CHECKING:
    from textual.screen import Screen

# Moving the cursor costs some eight bytes, as much as so many equal cells in between.
CLOSE = 6


class SparseApp(App[ReturnType]):
    """Everything else is as in App."""

    def __init__(self, translate: Callable[[str], str] = str) -> None:
        """translate: what is sent to a terminal that cannot show everything, cell for cell."""
        super().__init__()
        self._translate = translate
        self._terminal = TerminalCells()

    def _display(self, screen: Screen[Any], renderable: RenderableType | None) -> None:
        if isinstance(renderable, (ChopsUpdate, LayoutUpdate)):
            renderable = SparseUpdate(renderable, self._terminal, self._translate)
        super()._display(screen, renderable)


class SparseUpdate(CompositorUpdate):
    """What is left of an update; to be rendered once, when it is sent."""

    def __init__(
        self, update: ChopsUpdate | LayoutUpdate, terminal: TerminalCells, translate: Callable[[str], str]
    ) -> None:
        self._update = update
        self._terminal = terminal
        self._translate = translate

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield self._update

    def render_segments(self, console: Console) -> str:
        if isinstance(self._update, LayoutUpdate):
            return self._translate(self._terminal.draw_all(self._update, console))
        return self._translate(self._terminal.draw_changes(self._update, console))


class TerminalCells:
    """What a terminal shows, as far as it is known."""

    def __init__(self) -> None:
        self._rows: dict[int, list[Cell]] = {}
        self._width = 0

    def draw_all(self, update: LayoutUpdate, console: Console) -> str:
        """The whole screen, as it comes: it may have been cleared since."""
        self._width = update.region.right
        self._rows.clear()
        for y, strips in enumerate(update.strips, update.region.y):
            x = update.region.x
            for strip in strips:
                self._put(y, x, cells_of(strip), strip.cell_length)
                x += strip.cell_length
        return update.render_segments(console)

    def draw_changes(self, update: ChopsUpdate, console: Console) -> str:
        pieces = []
        for y, start, end in update.spans:
            for stop, (x, strip) in zip(update.chop_ends[y], update.chops[y].items(), strict=True):
                if strip is not None and x < end and stop > start:
                    pieces += self._draw(y, x, strip, max(start, x), min(end, stop), console)
        return "".join(pieces)

    def _draw(self, y: int, x: int, strip: Strip, start: int, end: int, console: Console) -> list[str]:
        """Cells start .. end of a strip that begins at column `x`."""
        cells = cells_of(strip)
        if cells is None:
            whole = strip.crop(0, end - x)
            self._put(y, x, None, whole.cell_length)
            return [_move_to(x, y), whole.render(console)]
        row = self._row(y, end)
        part = cells[start - x : end - x]
        pieces = []
        for first, last in changed_runs(row[start:end], part, CLOSE):
            pieces += [_move_to(start + first, y), strip_of(part[first:last]).render(console)]
        row[start : start + len(part)] = part
        return pieces

    def _put(self, y: int, x: int, cells: list[Cell] | None, length: int) -> None:
        row = self._row(y, x + length)
        row[x : x + length] = cells if cells is not None else [UNKNOWN] * length

    def _row(self, y: int, width: int) -> list[Cell]:
        row = self._rows.setdefault(y, [])
        row += [UNKNOWN] * (max(width, self._width) - len(row))
        return row


def _move_to(x: int, y: int) -> str:
    return Control.move_to(x, y).segment.text
