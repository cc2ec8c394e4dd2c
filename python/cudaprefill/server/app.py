"""The application: routes, and what is around all of them."""

from __future__ import annotations

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from cudaprefill.errors import EngineDeadError
from cudaprefill.server import (
    adapters,
    chat_completions,
    completions,
    controls,
    engine_settings,
    explain,
    health,
    metrics_endpoint,
    model_list,
    openapi,
    responses,
    telemetry,
    tokenization,
)
from cudaprefill.server.auth import ApiKeyMiddleware, BrowserGuardMiddleware
from cudaprefill.server.config import is_loopback
from cudaprefill.server.errors import ApiError, on_api_error, on_failure, on_http_exception
from cudaprefill.server.observers import Observers
from cudaprefill.server.state import ServerState

ENDPOINTS = (
    completions,
    chat_completions,
    responses,
    model_list,
    adapters,
    tokenization,
    engine_settings,
    telemetry,
    metrics_endpoint,
    explain,
    controls,
    health,
    openapi,
)
ALWAYS_ANSWERED = frozenset({"/metrics", "/version"})  # while the server shuts down, too


def create_app(state: ServerState) -> Starlette:
    """An ASGI application. Who runs it starts `state` before and closes it after."""
    config = state.config
    if config.api_keys:
        guard = Middleware(ApiKeyMiddleware, api_keys=config.api_keys)
    else:
        guard = Middleware(BrowserGuardMiddleware, loopback_only=is_loopback(config.host))
    app = Starlette(
        routes=[route for module in ENDPOINTS for route in module.routes],
        middleware=[guard, Middleware(AdmissionMiddleware, state=state)],
        exception_handlers={
            ApiError: on_api_error,
            EngineDeadError: on_api_error,
            HTTPException: on_http_exception,
            ClientDisconnect: _on_disconnect,
            Exception: on_failure,
        },
    )
    app.router.redirect_slashes = False
    app.state.server = state
    app.state.observers = Observers(state)
    app.state.explanations = explain.Explanations(state)
    return app


class AdmissionMiddleware:
    """Counts the HTTP requests in flight, and refuses new ones and new connections while the server shuts down.

    A websocket may outlive many requests, so its endpoint counts these by itself.
    """

    def __init__(self, app: ASGIApp, state: ServerState) -> None:
        self._app = app
        self._state = state

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["path"] in ALWAYS_ANSWERED:
            await self._app(scope, receive, send)
            return
        try:
            if scope["type"] == "websocket":
                self._state.refuse_while_draining()
                await self._app(scope, receive, send)
                return
            with self._state.admit():
                await self._app(scope, receive, send)
        except ApiError as error:
            await error.response()(scope, receive, send)


async def _on_disconnect(request: Request, error: Exception) -> Response:
    """Nobody is there to read it."""
    return Response(status_code=499)
