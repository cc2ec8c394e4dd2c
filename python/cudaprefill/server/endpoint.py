"""What every endpoint that takes a JSON body does around its own work."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

from pydantic import BaseModel
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from cudaprefill.server.body import read_model
from cudaprefill.server.disconnect import until_gone
from cudaprefill.server.errors import as_api_error
from cudaprefill.server.state import ServerState

Fields = TypeVar("Fields", bound=BaseModel)
Handler = Callable[[Request], Awaitable[Response]]

REQUEST_MODELS: dict[Handler, type[BaseModel]] = {}  # of all json_endpoints, for the description of the API


def json_endpoint(
    model: type[Fields], answer: Callable[[ServerState, Fields], Coroutine[Any, Any, Response]]
) -> Handler:
    """A handler that reads `model`, lets `answer` work until the client goes, and tells errors in OpenAI's shape."""

    async def handle(request: Request) -> Response:
        state: ServerState = request.app.state.server
        fields = await read_model(request, model)
        try:
            return await until_gone(request.receive, answer(state, fields))
        except ClientDisconnect:
            raise
        except Exception as error:
            raise as_api_error(error, model.model_fields) from error

    handle.__name__, handle.__doc__ = answer.__name__, answer.__doc__
    REQUEST_MODELS[handle] = model
    return handle
