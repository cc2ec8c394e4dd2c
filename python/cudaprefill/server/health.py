"""`/health` and `/version`: for those who ask before they send anything."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route

import cudaprefill
from cudaprefill.server.errors import RETRY_AFTER, ApiError
from cudaprefill.server.state import ServerState


async def health(request: Request) -> Response:
    """200 when a request would be answered; 503 when the engine is dead, being started, or stuck in a step."""
    state: ServerState = request.app.state.server
    stuck_for = state.engine.stuck_for()
    if stuck_for > state.config.stuck_after:
        raise ApiError(
            503, f"the engine has been in one step for {stuck_for:.0f} s", code="engine_stuck", headers=RETRY_AFTER
        )
    return JSONResponse({})


async def version(request: Request) -> Response:
    return JSONResponse({"version": cudaprefill.__version__})


routes: list[BaseRoute] = [Route("/health", health), Route("/version", version)]
