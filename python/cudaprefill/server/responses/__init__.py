"""OpenAI's Responses API, over HTTP and as a websocket.

parse           JSON -> ResponseBody, refusing what is not supported
conversation    ResponseBody and the turn before -> messages, token ids
service         -> engine -> events; what runs and what is kept
events          the engine's deltas -> the order of events
store           turns that can be gone on from
http, websocket the two ways in
"""

from __future__ import annotations

from starlette.routing import BaseRoute, Route, WebSocketRoute

from cudaprefill.server.responses.http import cancel_response, create_response, delete_response, retrieve_response
from cudaprefill.server.responses.websocket import respond

routes: list[BaseRoute] = [
    Route("/v1/responses", create_response, methods=["POST"]),
    WebSocketRoute("/v1/responses", respond),
    Route("/v1/responses/{id}", retrieve_response, methods=["GET"]),
    Route("/v1/responses/{id}", delete_response, methods=["DELETE"]),
    Route("/v1/responses/{id}/cancel", cancel_response, methods=["POST"]),
]
