from __future__ import annotations

from cudaprefill.client.engine_view import EngineView

from .pane import Pane


class BlocksPane(Pane):
    BORDER_TITLE = "Blocks"

    def update_view(self, view: EngineView) -> None:
        self.border_subtitle = "" if view.engine is None else view.engine.model
