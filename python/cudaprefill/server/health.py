"""`/health` and `/version`: for those who ask before they send anything."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route

import cudaprefill
from cudaprefill.server.state import ServerState


async def health(request: Request) -> Response:
    """200 when a request would be answered; 503 when the engine is dead or being started."""
    state: ServerState = request.app.state.server
    _ = state.engine
    return JSONResponse({})


async def version(request: Request) -> Response:
    return JSONResponse({"version": cudaprefill.__version__})


routes: list[BaseRoute] = [Route("/health", health), Route("/version", version)]
