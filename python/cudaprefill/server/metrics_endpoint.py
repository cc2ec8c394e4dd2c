"""`/metrics`: for Prometheus. No key is asked for, and nothing in it tells of a single request."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING

from prometheus_client.exposition import choose_encoder
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from cudaprefill.errors import EngineDeadError

if TYPE_CHECKING:
    from cudaprefill.engine.engine import Engine
    from cudaprefill.server.observers import Observers

_TEXT = "text/plain; version=0.0.4"
_OPEN_METRICS = "application/openmetrics-text; version=1.0.0"


async def metrics(request: Request) -> Response:
    """In Prometheus' text format, or in OpenMetrics' for those who accept it."""
    observers: Observers = request.app.state.observers
    await _count_blocks_when_idle(request, observers)
    accepted = _OPEN_METRICS if "application/openmetrics-text" in request.headers.get("accept", "") else _TEXT
    # Otherwise prometheus_client writes the colons of names, which every Prometheus takes, as underscores.
    encoder, _ = choose_encoder(f"{accepted}; escaping=allow-utf-8" if accepted is _OPEN_METRICS else accepted)
    return Response(encoder(observers.metrics.registry), media_type=f"{accepted}; charset=utf-8")


async def _count_blocks_when_idle(request: Request, observers: Observers) -> None:
    """The last step told of the blocks; an abort or a reset of the prefix cache since then did not."""
    if any(observers.metrics.requests):
        return
    with contextlib.suppress(EngineDeadError, asyncio.TimeoutError):
        engine = request.app.state.server.engine
        counts = await asyncio.wait_for(engine.call(_count_blocks), timeout=0.1)
        observers.metrics.set_blocks(*counts)


def _count_blocks(engine: Engine) -> tuple[int, int, int]:
    pool = engine.scheduler.pool
    return pool.num_free, pool.num_cached, pool.num_used


routes: list[BaseRoute] = [Route("/metrics", metrics)]
