"""`/v1/telemetry`: the engine's inside over a websocket. docs/protocol.md describes the messages.

feed.py says what changed since when, hub.py joins it to the engine and to all subscribers, session.py is one
connection.
"""

from __future__ import annotations

from starlette.routing import BaseRoute, WebSocketRoute
from starlette.websockets import WebSocket

from cudaprefill.server.telemetry.session import TelemetrySession


async def telemetry(websocket: WebSocket) -> None:
    await TelemetrySession(websocket).run()


routes: list[BaseRoute] = [WebSocketRoute("/v1/telemetry", telemetry)]
