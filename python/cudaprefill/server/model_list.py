"""`/v1/models`, and whether a request asks for a model that is here."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route

from cudaprefill.server.errors import ApiError
from cudaprefill.server.state import ServerState


def require_model(state: ServerState, name: str | None) -> str:
    """The name that the answer carries; None asks for the one there is. Raises ApiError 404 for any other."""
    if name is None:
        return state.model_names[0]
    if name not in state.model_names:
        raise ApiError(404, f"the model {name!r} does not exist here", param="model", code="model_not_found")
    return name


def _describe(state: ServerState, name: str) -> dict[str, object]:
    return {
        "id": name,
        "object": "model",
        "created": state.created,
        "owned_by": "cudaprefill",
        "root": state.model_names[0],
        "parent": None,
        "max_model_len": state.engine.info.max_model_len,
    }


async def list_models(request: Request) -> Response:
    state: ServerState = request.app.state.server
    return JSONResponse({"object": "list", "data": [_describe(state, name) for name in state.model_names]})


async def retrieve_model(request: Request) -> Response:
    state: ServerState = request.app.state.server
    return JSONResponse(_describe(state, require_model(state, request.path_params["name"])))


routes: list[BaseRoute] = [
    Route("/v1/models", list_models),
    Route("/v1/models/{name:path}", retrieve_model),
]
