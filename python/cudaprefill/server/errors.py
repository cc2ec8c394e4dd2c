"""Every error in OpenAI's shape: {"error": {"message", "type", "param", "code"}}."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Iterable, Mapping

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from cudaprefill.adapters import UnknownAdapterError
from cudaprefill.errors import EngineDeadError, QueueFullError, SlowReaderError

logger = logging.getLogger(__name__)

_TYPES = {401: "authentication_error", 403: "permission_error", 429: "rate_limit_error"}
RETRY_AFTER = {"Retry-After": "1"}  # seconds


class ApiError(Exception):
    """An answer that is an error; `headers` go with it."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.type = _TYPES.get(status, "invalid_request_error" if status < 500 else "server_error")
        self.param = param
        self.code = code
        self.headers = dict(headers or {})

    @property
    def body(self) -> dict[str, object]:
        return {"error": {"message": self.message, "type": self.type, "param": self.param, "code": self.code}}

    def response(self) -> Response:
        return Response(json.dumps(self.body), self.status, self.headers, media_type="application/json")


def as_api_error(error: BaseException, fields: Iterable[str] = ()) -> ApiError:
    """What a client is told of `error`. A ValueError that begins with the name of a field is about that field."""
    if isinstance(error, ApiError):
        return error
    if isinstance(error, QueueFullError):
        return ApiError(429, str(error), code="queue_full", headers=RETRY_AFTER)
    if isinstance(error, EngineDeadError):
        return ApiError(503, str(error), code="engine_dead", headers=RETRY_AFTER)
    if isinstance(error, SlowReaderError):
        return ApiError(400, str(error), code="slow_reader")
    if isinstance(error, UnknownAdapterError):  # it went between the look at its name and the request
        return ApiError(404, str(error), param="model", code="model_not_found")
    if isinstance(error, ValueError):
        return ApiError(400, str(error), param=getattr(error, "param", None) or _field_in(str(error), fields))
    logger.error("a request failed", exc_info=error)
    # The engine's own words are for clients; what a library says may be anything.
    reason = str(error) if type(error) is RuntimeError else type(error).__name__
    return ApiError(500, f"the request failed: {reason}", code="internal_error")


def _field_in(message: str, fields: Iterable[str]) -> str | None:
    """The field that the message begins with; "the prompt ..." and "prompt 1: ..." are about prompt."""
    words = re.match(r"(?:the )?(\w+)", message)
    return words[1] if words and words[1] in set(fields) else None


async def on_api_error(request: Request, error: Exception) -> Response:
    return as_api_error(error).response()


async def on_http_exception(request: Request, error: Exception) -> Response:
    """What the router says: no such path, or not by this method."""
    assert isinstance(error, HTTPException)
    told = {
        404: f"there is no {request.url.path}",
        405: f"{request.url.path} does not take {request.method}",
    }.get(error.status_code, error.detail)
    return ApiError(error.status_code, told, headers=error.headers).response()


async def on_failure(request: Request, error: Exception) -> Response:
    """A fault of the server's own: its details are for the log, not for the client."""
    return ApiError(500, f"the server failed: {type(error).__name__}", code="internal_error").response()
