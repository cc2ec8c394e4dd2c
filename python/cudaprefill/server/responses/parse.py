"""From a JSON object to a ResponseBody: what this server cannot honour is refused by name, never passed over."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from cudaprefill.protocol.codec import ProtocolError, build
from cudaprefill.protocol.responses import ResponseBody, ResponseCreate
from cudaprefill.sampling_params import show
from cudaprefill.server.errors import ApiError

STREAM_ID = re.compile(r"[A-Za-z0-9_.-]{1,256}")
MAX_METADATA, MAX_METADATA_KEY, MAX_METADATA_VALUE = 16, 64, 512  # OpenAI's
MAX_TOP_LOGPROBS = 20

Body = TypeVar("Body", bound=ResponseBody)

# Fields of OpenAI's that clients send by default, and the values of them that ask for nothing this server lacks.
_ALLOWED: Mapping[str, Callable[[Any], bool]] = {
    "background": lambda value: value is False,
    "context_management": lambda value: value == [],
    "include": lambda value: (
        isinstance(value, list)
        and all(item in ("message.output_text.logprobs", "reasoning.encrypted_content") for item in value)
    ),
    "parallel_tool_calls": lambda value: isinstance(value, bool),
    "reasoning": lambda value: isinstance(value, dict) and all(item is None for item in value.values()),
    "service_tier": lambda value: value in ("auto", "default"),
    "stream_options": lambda value: value in ({}, {"include_obfuscation": False}),
    "tool_choice": lambda value: value in ("auto", "none"),
    "tools": lambda value: value == [],
    "truncation": lambda value: value == "disabled",
    # Names for accounting and routing on OpenAI's side; nothing here depends on them.
    "prompt_cache_key": lambda value: isinstance(value, str),
    "safety_identifier": lambda value: isinstance(value, str),
    "user": lambda value: isinstance(value, str),
}


def parse_create(fields: Mapping[str, Any]) -> ResponseCreate:
    """What came over a websocket. Raises ProtocolError or ApiError naming the field."""
    create = parse_body(fields, ResponseCreate)
    if create.stream is False:
        raise ProtocolError("stream cannot be false over a websocket", "stream")
    if create.stream_id is not None and not STREAM_ID.fullmatch(create.stream_id):
        raise ProtocolError(
            f"stream_id must be 1 to 256 of A-Z a-z 0-9 _ . -, got {show(create.stream_id)}", "stream_id"
        )
    return create


def parse_body(fields: Mapping[str, Any], kind: type[Body]) -> Body:
    """Raises ProtocolError or ApiError naming the field."""
    known = {field.name for field in dataclasses.fields(kind)}
    for name, value in fields.items():
        if name in known or value is None:
            continue
        if name not in _ALLOWED:
            raise ApiError(
                400, f"{show(name)} is not supported by this server", param=name, code="unsupported_parameter"
            )
        if not _ALLOWED[name](value):
            raise ApiError(
                400, f"{name} {show(value)} is not supported by this server", param=name, code="unsupported_parameter"
            )
    body = build(kind, fields)
    _check_input(body)
    _check_metadata(body.metadata or {})
    if body.max_output_tokens is not None and body.max_output_tokens < 1:
        raise ProtocolError(f"max_output_tokens must be at least 1, got {body.max_output_tokens}", "max_output_tokens")
    if body.top_logprobs is not None and not 0 <= body.top_logprobs <= MAX_TOP_LOGPROBS:
        raise ProtocolError(
            f"top_logprobs must be between 0 and {MAX_TOP_LOGPROBS}, got {show(body.top_logprobs)}", "top_logprobs"
        )
    if body.top_logprobs is None and "message.output_text.logprobs" in (fields.get("include") or []):
        body.top_logprobs = 0
    if body.text is not None and body.text.format.type == "json_schema" and body.text.format.schema is None:
        raise ProtocolError("text.format.schema is missing", "text.format.schema")
    return body


def _check_input(body: ResponseBody) -> None:
    if body.input is not None and not body.input:
        raise ProtocolError("input must not be empty", "input")
    for number, message in enumerate([] if body.input is None or isinstance(body.input, str) else body.input):
        if not message.content:
            raise ProtocolError(f"input[{number}].content must not be empty", "input")


def _check_metadata(metadata: Mapping[str, str]) -> None:
    if len(metadata) > MAX_METADATA:
        raise ProtocolError(f"metadata may have at most {MAX_METADATA} entries, got {len(metadata)}", "metadata")
    for key, value in metadata.items():
        if len(key) > MAX_METADATA_KEY or len(value) > MAX_METADATA_VALUE:
            raise ProtocolError(
                f"metadata: a key may have {MAX_METADATA_KEY} and a value {MAX_METADATA_VALUE} characters,"
                f" got {len(key)} and {len(value)}",
                "metadata",
            )
