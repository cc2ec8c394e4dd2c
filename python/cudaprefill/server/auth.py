"""Who may use the server, over HTTP and websockets alike."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Sequence
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from cudaprefill.server.config import is_loopback
from cudaprefill.server.errors import ApiError

# Probes and dashboards come without a key, and learn nothing about any request here.
OPEN_PATHS = frozenset({"/health", "/metrics", "/version", "/openapi.json"})


class ApiKeyMiddleware:
    """Asks for `Authorization: Bearer <key>` on every path but the open ones."""

    def __init__(self, app: ASGIApp, api_keys: Sequence[str]) -> None:
        self._app = app
        # Digests are all of one length, so comparing them tells nothing of a key, not even how long it is.
        self._digests = [_digest(key.encode()) for key in api_keys]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket") or scope["path"] in OPEN_PATHS or self._knows(scope):
            await self._app(scope, receive, send)
            return
        error = ApiError(
            401, "the API key is missing or wrong", code="invalid_api_key", headers={"WWW-Authenticate": "Bearer"}
        )
        await error.response()(scope, receive, send)

    def _knows(self, scope: Scope) -> bool:
        scheme, _, key = Headers(scope=scope).get("authorization", "").partition(" ")
        offered = _digest(key.strip().encode("latin-1"))
        matches = [hmac.compare_digest(offered, digest) for digest in self._digests]  # all of them, at equal cost
        return scheme.lower() == "bearer" and any(matches)


def _digest(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()


class BrowserGuardMiddleware:
    """Where no key is asked for: keeps web pages of other sites from using the server through their visitors' browsers.

    A browser says in Origin where a page comes from. On loopback the Host must be loopback too, or a site whose name
    is made to lead here would pass for the server's own.
    """

    def __init__(self, app: ASGIApp, loopback_only: bool) -> None:
        self._app = app
        self._loopback_only = loopback_only

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] in ("http", "websocket"):
            headers = Headers(scope=scope)
            host, origin = headers.get("host", ""), headers.get("origin")
            reason = None
            if origin is not None and _split(origin)[0] != host:
                reason = f"a page of {origin} may not use this server"
            elif self._loopback_only and host and not is_loopback(_split(f"//{host}")[1]):
                reason = f"the server is not known as {host}"
            if reason is not None:
                error = ApiError(403, f"{reason} without an API key", code="foreign_origin")
                await error.response()(scope, receive, send)
                return
        await self._app(scope, receive, send)


def _split(url: str) -> tuple[str | None, str]:
    """Host and port as they stand, and the host alone; what is no URL is nobody's."""
    try:
        parts = urlsplit(url)
    except ValueError:  # brackets that do not match, for one
        return None, ""
    return parts.netloc, parts.hostname or ""
