"""`/v1/models`, and which model or adapter a request asks for."""

from __future__ import annotations

from typing import NamedTuple

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route

from cudaprefill.adapters import Adapter
from cudaprefill.server.errors import ApiError
from cudaprefill.server.state import ServerState


class AskedModel(NamedTuple):
    """What a request names as its model: the name is what the answer carries."""

    name: str
    adapter: str | None  # None: the model alone


def require_model(state: ServerState, name: str | None) -> AskedModel:
    """None asks for the model there is. Raises ApiError 404 for what is neither the model nor an adapter."""
    if name is None:
        return AskedModel(state.model_names[0], None)
    if name in state.model_names:
        return AskedModel(name, None)
    if name in state.engine.adapters:
        return AskedModel(name, name)
    raise ApiError(404, f"the model {name!r} does not exist here", param="model", code="model_not_found")


def num_virtual_tokens(state: ServerState, asked: AskedModel) -> int:
    """In front of each prompt. Raises UnknownAdapterError."""
    return 0 if asked.adapter is None else state.engine.adapters.get(asked.adapter).virtual_tokens.num_tokens


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


def _describe_adapter(state: ServerState, adapter: Adapter) -> dict[str, object]:
    """max_model_len: what is left of it for text and output."""
    num_virtual_tokens = adapter.virtual_tokens.num_tokens
    return {
        **_describe(state, adapter.name),
        "created": int(adapter.loaded_at),
        "root": adapter.folder.name,
        "parent": state.model_names[0],
        "max_model_len": state.engine.info.max_model_len - num_virtual_tokens,
        "kind": adapter.kind,
        "virtual_tokens": num_virtual_tokens,
    }


async def list_models(request: Request) -> Response:
    """The model by each of its names, then the adapters."""
    state: ServerState = request.app.state.server
    models = [_describe(state, name) for name in state.model_names]
    models += [_describe_adapter(state, adapter) for adapter in state.engine.adapters]
    return JSONResponse({"object": "list", "data": models})


async def retrieve_model(request: Request) -> Response:
    """One of them."""
    state: ServerState = request.app.state.server
    asked = require_model(state, request.path_params["name"])
    if asked.adapter is None:
        return JSONResponse(_describe(state, asked.name))
    return JSONResponse(_describe_adapter(state, state.engine.adapters.get(asked.adapter)))


routes: list[BaseRoute] = [
    Route("/v1/models", list_models),
    Route("/v1/models/{name:path}", retrieve_model),
]
