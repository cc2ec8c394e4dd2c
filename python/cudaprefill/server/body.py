"""Reads a request's body: bounded, strict JSON, checked against its data model."""

from __future__ import annotations

import asyncio
import contextlib
import json
from typing import TYPE_CHECKING, Any, TypeVar

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from cudaprefill.protocol.codec import ProtocolError, parse_object
from cudaprefill.sampling_params import show
from cudaprefill.server.errors import ApiError

if TYPE_CHECKING:
    from cudaprefill.server.state import ServerState

Model = TypeVar("Model", bound=BaseModel)

# Below this many bytes parsing takes less time than a thread would take to start on it.
SMALL_BODY = 16 * 1024
LINGER_SECONDS = 1.0


class BodyTooLargeError(ApiError):
    def __init__(self, limit: int) -> None:
        super().__init__(
            413,
            f"the body is longer than {limit} bytes, the limit of this server",
            code="body_too_large",
            headers={"Connection": "close"},
        )

    def response(self) -> Response:
        return _LingeringResponse(json.dumps(self.body), self.status, self.headers, media_type="application/json")


class _LingeringResponse(Response):
    """Takes and forgets what the client still sends for a moment.

    A connection that is closed with something unread is reset, and the client may never get to see the answer.
    """

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        await send({"type": "http.response.body", "body": self.body, "more_body": True})
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(_forget(receive), LINGER_SECONDS)
        await send({"type": "http.response.body", "body": b"", "more_body": False})


async def _forget(receive: Receive) -> None:
    while (await receive()).get("more_body", False):
        pass


async def parse_off_the_loop(state: ServerState, body: bytes, model: type[Model]) -> Model:
    """As parse_model; a body that takes longer than a moment is left to another thread."""
    if len(body) <= SMALL_BODY:
        return parse_model(body, model)
    return await asyncio.get_running_loop().run_in_executor(state.executor_for(len(body)), parse_model, body, model)


async def read_body(request: Request, limit: int) -> bytes:
    """Raises ApiError 413 as soon as the body is known to be longer than `limit` bytes: what follows is not read."""
    announced = request.headers.get("content-length", "")
    if announced.isascii() and announced.isdigit() and (len(announced) > 18 or int(announced) > limit):
        raise BodyTooLargeError(limit)
    parts = []
    size = 0
    while True:
        message = await request.receive()
        if message["type"] == "http.disconnect":
            raise ClientDisconnect
        size += len(message.get("body", b""))
        if size > limit:
            raise BodyTooLargeError(limit)
        parts.append(message.get("body", b""))
        if not message.get("more_body", False):
            return b"".join(parts)


def parse_model(body: bytes, model: type[Model]) -> Model:
    """Raises ApiError 400 saying what is wrong."""
    try:
        text = body.decode()
    except UnicodeDecodeError as error:
        raise ApiError(400, f"the body must be UTF-8, but byte {error.start} is not") from None
    try:
        return validate(parse_object(text), model)
    except ProtocolError as error:
        raise ApiError(400, str(error), param=error.param) from None


def validate(fields: dict[str, Any], model: type[Model]) -> Model:
    """Fields that are null count as left out, and fields that `model` does not have are ignored."""
    try:
        return model.model_validate({name: value for name, value in fields.items() if value is not None}, strict=True)
    except ValidationError as error:
        raise _as_api_error(error.errors(include_url=False)[0]) from None


def _as_api_error(error: ErrorDetails) -> ApiError:
    place = error["loc"]
    param = str(place[0]) if place else None
    if error["type"] == "missing":
        return ApiError(400, f"{param} is missing", param=param)
    if error["type"] == "value_error":  # raised by a validator of our own
        return ApiError(400, f"{param} {error['ctx']['error']}", param=param)
    reason = error["msg"][0].lower() + error["msg"][1:]
    return ApiError(400, f"{'.'.join(map(str, place))}: {reason}, got {show(error['input'])}", param=param)
