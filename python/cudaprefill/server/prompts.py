"""The `prompt` of a completion: text, token ids, or a list of either."""

from __future__ import annotations

from typing import Annotated

from pydantic import PlainValidator, WithJsonSchema

from cudaprefill.sampling_params import show

MAX_PROMPTS = 1024  # of one request

_TOKEN_IDS = {"type": "array", "items": {"type": "integer"}}


def parse_prompts(value: object) -> list[str | list[int]]:
    """One entry a prompt. What is in a prompt's token ids is left for the engine to check."""
    if isinstance(value, str):
        return [value]
    if not isinstance(value, list):
        raise ValueError(f"must be text, token ids, or a list of either, got {show(value)}")
    if not value:
        raise ValueError("must not be empty, got []")
    if all(isinstance(item, int) for item in value):
        return [value]
    if len(value) > MAX_PROMPTS:
        raise ValueError(f"may have at most {MAX_PROMPTS} prompts, got {len(value)}")
    kind = type(value[0])
    if kind not in (str, list) or not all(type(item) is kind for item in value):
        raise ValueError(f"must be text, token ids, or a list of either, got {show(value)}")
    return value


Prompts = Annotated[
    list[str | list[int]],
    PlainValidator(parse_prompts),
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "string"},
                _TOKEN_IDS,
                {"type": "array", "items": {"type": "string"}, "maxItems": MAX_PROMPTS},
                {"type": "array", "items": _TOKEN_IDS, "maxItems": MAX_PROMPTS},
            ]
        }
    ),
]
