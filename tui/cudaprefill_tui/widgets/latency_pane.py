from __future__ import annotations

from cudaprefill.client.engine_view import EngineView

from .pane import Pane


class LatencyPane(Pane):
    BORDER_TITLE = "Latency"

    def update_view(self, view: EngineView) -> None:
        self.border_subtitle = "" if view.engine is None else view.engine.model
