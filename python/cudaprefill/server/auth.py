"""Who may use the server: API keys, on HTTP and websockets alike."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Sequence

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

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
