"""An application that draws only what changed, and sends a terminal only the cells that differ from what it shows.

Textual redraws a changed part of a widget from the widget's left edge on, with the colours of every piece. Over a slow
connection that is several times what is needed: panes change in a few digits a row, ten times a second.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from rich.color import ColorSystem
from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from textual._compositor import ChopsUpdate, CompositorUpdate, LayoutUpdate
from textual.app import App, ReturnType
from textual.screen import Screen
from textual.strip import Strip

from .sparse_compositor import Patch, PatchesUpdate, SparseScreen
from .strip_cells import UNKNOWN, Cell, cells_of, changed_runs, runs_of

# Moving the cursor costs some eight bytes, as much as so many equal cells in between.
CLOSE = 6


class SparseApp(App[ReturnType]):
    """Everything else is as in App."""

    def __init__(self, translate: Callable[[str], str] = str) -> None:
        """translate: what is sent to a terminal that cannot show everything, cell for cell."""
        super().__init__()
        self._translate = translate
        self._terminal = TerminalCells()

    def get_default_screen(self) -> Screen[Any]:
        return SparseScreen(id="_default")

    def _display(self, screen: Screen[Any], renderable: RenderableType | None) -> None:
        if isinstance(renderable, (PatchesUpdate, ChopsUpdate, LayoutUpdate)):
            renderable = SparseUpdate(renderable, self._terminal, self._translate)
        super()._display(screen, renderable)


class SparseUpdate(CompositorUpdate):
    """What is left of an update; to be rendered once, when it is sent."""

    def __init__(
        self,
        update: PatchesUpdate | ChopsUpdate | LayoutUpdate,
        terminal: TerminalCells,
        translate: Callable[[str], str],
    ) -> None:
        self._update = update
        self._terminal = terminal
        self._translate = translate

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield self._update

    def render_segments(self, console: Console) -> str:
        if isinstance(self._update, LayoutUpdate):
            return self._translate(self._terminal.draw_all(self._update, console))
        patches = self._update.patches if isinstance(self._update, PatchesUpdate) else patches_of(self._update)
        return self._translate(self._terminal.draw_changes(patches, console))


def patches_of(update: ChopsUpdate) -> Iterator[Patch]:
    for y, start, end in update.spans:
        for stop, (x, strip) in zip(update.chop_ends[y], update.chops[y].items(), strict=True):
            if strip is not None and x < end and stop > start:
                yield Patch(y, x, strip, max(start, x), min(end, stop))


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

    def draw_changes(self, patches: Iterable[Patch], console: Console) -> str:
        return "".join(piece for patch in patches for piece in self._draw(*patch, console))

    def _draw(self, y: int, x: int, strip: Strip, start: int, end: int, console: Console) -> list[str]:
        cells = cells_of(strip)
        if cells is None:
            whole = strip.crop(0, end - x)
            self._put(y, x, None, whole.cell_length)
            return [_move_to(x, y), whole.render(console)]
        row = self._row(y, end)
        colours = console._color_system or ColorSystem.TRUECOLOR
        part = cells[start - x : end - x]
        pieces = []
        for first, last in changed_runs(row[start:end], part, CLOSE):
            pieces += [_move_to(start + first, y), _rendered(part[first:last], colours)]
        row[start : start + len(part)] = part
        return pieces

    def _put(self, y: int, x: int, cells: list[Cell] | None, length: int) -> None:
        row = self._row(y, x + length)
        row[x : x + length] = cells if cells is not None else [UNKNOWN] * length

    def _row(self, y: int, width: int) -> list[Cell]:
        row = self._rows.setdefault(y, [])
        row += [UNKNOWN] * (max(width, self._width) - len(row))
        return row


def _rendered(cells: Sequence[Cell], colours: ColorSystem) -> str:
    return "".join(
        text if style is None else Strip.render_style(style, text, colours) for text, style in runs_of(cells)
    )


def _move_to(x: int, y: int) -> str:
    return f"\x1b[{y + 1};{x + 1}H"
