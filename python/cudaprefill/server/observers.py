"""Who watches the server's engine: metrics from its start to its end, telemetry while somebody wants some."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cudaprefill.observe.metrics import Metrics
from cudaprefill.server.telemetry.hub import TelemetryHub

if TYPE_CHECKING:
    from cudaprefill.async_engine import AsyncEngine
    from cudaprefill.server.state import ServerState


class Observers:
    """Handlers find it as `request.app.state.observers`, from the start of the first engine on.

    metrics: of all engines that the server ever had.
    """

    metrics: Metrics
    telemetry: TelemetryHub

    def __init__(self, state: ServerState) -> None:
        self._state = state
        self._started = False
        state.on_engine(self._on_engine)

    def _on_engine(self, engine: AsyncEngine) -> None:
        if self._started:
            self.metrics.engine_restarted()
        else:
            self.metrics = Metrics(
                self._state.model_names[0],
                max_model_len=engine.info.max_model_len,
                num_blocks=engine.info.num_blocks,
                enable_prefix_caching=engine.info.enable_prefix_caching,
            )
            self.telemetry = TelemetryHub(self.metrics)
            self._started = True
        engine.events.subscribe(self.metrics.on_events)
        self.telemetry.use(engine)
