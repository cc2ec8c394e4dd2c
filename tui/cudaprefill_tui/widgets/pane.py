"""What all panes share."""

from __future__ import annotations

from typing import TYPE_CHECKING

from textual.containers import Vertical
from textual.content import Content
from textual.widget import Widget

from ..cells import join_fitting
from ..glyphs import UNICODE, Glyphs

if TYPE_CHECKING:
    from cudaprefill.client.engine_view import EngineView


class Pane(Vertical):
    """A framed part of the desktop that shows an EngineView.

    `update_view` is called after telemetry was applied, ten to fifteen times a second; `highlight` when another
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
        super().__init__(id=id)
        self.glyphs = glyphs
        self._title: str | None = None
        self.show_title()

    def update_view(self, view: EngineView) -> None:
        raise NotImplementedError

    def highlight(self, number: int | None) -> None:
        """Lights up what belongs to a request, or nothing."""

    def show_title(self, *facts: str) -> None:
        """The frame's title with as many of the facts as fit: plain text, never markup."""
        title = join_fitting([f"{self.TITLE} ─ {facts[0]}", *facts[1:]] if facts else [self.TITLE], self.size.width - 6)
        title = title or self.TITLE
        if title != self._title:
            self._title = title
            self.border_title = Content(title)


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
