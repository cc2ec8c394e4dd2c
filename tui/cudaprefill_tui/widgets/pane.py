"""What all panes share."""

from __future__ import annotations

from typing import TYPE_CHECKING

from textual.containers import Vertical

if TYPE_CHECKING:
    from cudaprefill.client.engine_view import EngineView


class Pane(Vertical):
    """A framed part of the desktop that shows an EngineView.

    `update_view` is called after telemetry was applied, ten to fifteen times a second; `highlight` when another
    request is pointed at.
    """

    DEFAULT_CSS = """
    Pane {
        border: round $border-blurred;
        border-title-color: $text-muted;
        border-subtitle-color: $text-muted;
        padding: 0;
    }
    Pane:focus-within {
        border: round $border;
        border-title-color: $text;
        border-title-style: bold;
    }
    """

    def update_view(self, view: EngineView) -> None:
        raise NotImplementedError

    def highlight(self, number: int | None) -> None:
        """Lights up what belongs to a request, or nothing."""
