"""What all panes share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from rich.cells import cell_len
from textual.containers import Vertical
from textual.content import Content
from textual.geometry import Region
from textual.style import Style
from textual.widget import Widget

from ..cells import join_fitting
from ..glyphs import UNICODE, Glyphs
from ..sparse_compositor import SparseScreen

if TYPE_CHECKING:
    from typing_extensions import Self

    from cudaprefill.client.engine_view import EngineView

TITLE_MARGIN = 12  # corners, and the handle of a splitter


class Pane(Vertical):
    """A framed part of the desktop that shows an EngineView.

    `update_view` is called after telemetry was applied, up to twelve times a second; `highlight` when another
    request is pointed at.
    """

    TITLE = ""
    DEFAULT_CSS = """
    Pane {
        border: round $border;
        border-title-color: $foreground 70%;
        border-title-style: none;
        border-subtitle-color: $foreground 60%;
        background: $surface;
        padding: 0;
    }
    Pane:focus-within {
        border: round $primary;
        border-title-color: $foreground;
        border-title-style: bold;
    }
    """

    def __init__(self, *, glyphs: Glyphs = UNICODE, id: str | None = None) -> None:
        self._only_title = False  # whether a refresh is that of the title
        super().__init__(id=id)
        self.glyphs = glyphs
        self._title: str | None = None
        self.show_title()

    def update_view(self, view: EngineView) -> None:
        raise NotImplementedError

    @property
    def focus_target(self) -> Widget | None:
        """What takes the keys when the pane is brought to the front."""
        return next((widget for widget in self.walk_children(Widget) if widget.focusable), None)

    def highlight(self, number: int | None) -> None:
        """Lights up what belongs to a request, or nothing."""

    def show_title(self, *facts: str) -> None:
        """The frame's title with as many of the facts as fit: plain text, never markup."""
        title = join_fitting(
            [f"{self.TITLE} ─ {facts[0]}", *facts[1:]] if facts else [self.TITLE], self.size.width - TITLE_MARGIN
        )
        title = title or self.TITLE
        if title != self._title:
            self._title = title
            self._only_title = True
            self.border_title = Content(title)
            self._only_title = False

    def refresh(self, *regions: Region, repaint: bool = True, layout: bool = False, recompose: bool = False) -> Self:
        """Another title, which may come with every update, redraws the frame's top row instead of all it encloses."""
        if self._only_title and self.is_mounted:
            regions = (Region(-self.gutter.left, -self.gutter.top, self.outer_size.width, 1),)
            if isinstance(self.screen, SparseScreen):
                self.screen.draw_soon(self, regions)
                return self
        return super().refresh(*regions, repaint=repaint, layout=layout, recompose=recompose)


class Line(Widget):
    """One line of styled text that changes often: no layout, no markup, no redraw of what it shows already."""

    DEFAULT_CSS = """
    Line {
        height: 1;
        width: 1fr;
        color: $foreground 70%;
        background: $surface;
    }
    """

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self.content = Content()

    def show(self, content: Content | str) -> None:
        new = content if isinstance(content, Content) else Content(content)
        if not new.is_same(self.content):
            self.content = new
            self.refresh()

    def render(self) -> Content:
        return self.content


class Legend(Widget):
    """What glyphs mean, in place: as many of the entries as fit, each whole."""

    DEFAULT_CSS = """
    Legend { height: 1; padding: 0 1; background: $surface; color: $foreground 60%; }
    """

    def __init__(self, entries: Callable[[], Sequence[tuple[str, str | Style, str]]]) -> None:
        """entries: glyph, its style, words; asked at every drawing, since themes change."""
        super().__init__()
        self._entries = entries

    def render(self) -> Content:
        parts: list[Content | str] = []
        left = self.size.width
        for glyph, style, words in self._entries():
            length = cell_len(glyph) + 1 + cell_len(words)
            if length > left:
                break
            parts += [Content.styled(glyph, style), f" {words}   "]
            left -= length + 3
        return Content.assemble(*parts)
