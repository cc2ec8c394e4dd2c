"""What every endpoint that takes a JSON body does around its own work."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import Executor
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from pydantic import BaseModel
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from cudaprefill.server.body import parse_off_the_loop, read_body
from cudaprefill.server.disconnect import until_gone
from cudaprefill.server.errors import as_api_error
from cudaprefill.server.http_protocol import received_time
from cudaprefill.server.state import ServerState

Fields = TypeVar("Fields", bound=BaseModel)
Handler = Callable[[Request], Awaitable[Response]]

REQUEST_MODELS: dict[Handler, type] = {}  # of all that take a JSON body, for the description of the API


@dataclass(frozen=True)
class Call(Generic[Fields]):
    """One request, and what is known of it beside its fields."""

    state: ServerState
    fields: Fields
    arrival_time: float  # seconds, time.monotonic(): when its first byte was read
    size: int  # bytes of its body

    @property
    def executor(self) -> Executor:
        """Where to tokenize it."""
        return self.state.executor_for(self.size)


def json_endpoint(model: type[Fields], answer: Callable[[Call[Fields]], Coroutine[Any, Any, Response]]) -> Handler:
    """A handler that reads `model`, lets `answer` work until the client goes, and tells errors in OpenAI's shape."""

    async def handle(request: Request) -> Response:
        state: ServerState = request.app.state.server
        arrival_time = received_time(request)
        body = await read_body(request, state.config.max_body_size)
        fields = await parse_off_the_loop(state, body, model)
        try:
            return await until_gone(request.receive, answer(Call(state, fields, arrival_time, len(body))))
        except ClientDisconnect:
            raise
        except Exception as error:
            raise as_api_error(error, model.model_fields) from error

    handle.__name__, handle.__doc__ = answer.__name__, answer.__doc__
    REQUEST_MODELS[handle] = model
    return handle
