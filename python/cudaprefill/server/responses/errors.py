"""Errors of requests for responses, with the names that their fields have here."""

from __future__ import annotations

import dataclasses

from cudaprefill.protocol.responses import ResponseBody
from cudaprefill.server.errors import ApiError, as_api_error

# What the engine calls a field that clients know by another name.
_OTHER_NAMES = {
    "prompt": "input",
    "messages": "input",
    "max_tokens": "max_output_tokens",
    "logprobs": "top_logprobs",
    "json": "text",
    "structured_outputs": "text",
}
_FIELDS = frozenset(field.name for field in dataclasses.fields(ResponseBody)) | _OTHER_NAMES.keys()


def response_error(error: Exception) -> ApiError:
    """What a client is told of `error`; `param` is a field of ResponseBody."""
    if isinstance(error, ApiError):
        return error
    told = as_api_error(error, _FIELDS)
    if told.param is not None:
        told.param = _OTHER_NAMES.get(told.param, told.param)
    return told
