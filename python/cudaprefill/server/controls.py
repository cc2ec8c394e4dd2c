"""`/abort_requests` and `/reset_prefix_cache`: for whoever runs the server. Like all that acts, behind the API key."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route

from cudaprefill.server.endpoint import Call, json_endpoint
from cudaprefill.server.state import ServerState


class AbortRequests(BaseModel):
    model_config = ConfigDict(extra="forbid")  # a slip in the name must not mean all requests

    request_ids: list[str] | None = Field(None, description="ids as answers carry them; left out: all requests")


async def abort_requests(call: Call[AbortRequests]) -> Response:
    """Ends requests: their answers end with finish_reason "abort"; ids that are unknown or finished are passed over."""
    engine, request_ids = call.state.engine, call.fields.request_ids
    if request_ids is None:
        return JSONResponse({"aborted": await engine.abort_all()})
    return JSONResponse({"aborted": sum([await engine.abort(request_id) for request_id in request_ids])})


async def reset_prefix_cache(request: Request) -> Response:
    """Forgets all cached prefixes; requests that run keep their blocks."""
    state: ServerState = request.app.state.server
    await state.engine.reset_prefix_cache()
    return JSONResponse({})


routes: list[BaseRoute] = [
    Route("/abort_requests", json_endpoint(AbortRequests, abort_requests), methods=["POST"]),
    Route("/reset_prefix_cache", reset_prefix_cache, methods=["POST"]),
]
