"""What a request says its output must follow, in OpenAI's, vLLM's and vLLM's older words."""

from __future__ import annotations

import dataclasses
from typing import Any

from pydantic import BaseModel, Field

from cudaprefill.sampling_params import StructuredOutputsParams, show

_NAMES = frozenset(field.name for field in dataclasses.fields(StructuredOutputsParams))


class StructuredFields(BaseModel):
    """At most one of them may ask for something."""

    response_format: dict[str, Any] | None = Field(
        None, description='{"type": "text" | "json_object" | "json_schema", "json_schema": {"schema": ...}}'
    )
    structured_outputs: dict[str, Any] | None = Field(
        None, description="one of json (a schema), regex, grammar (EBNF), choice (a list), json_object (true)"
    )
    guided_json: str | dict[str, Any] | None = Field(None, description="as structured_outputs.json")
    guided_regex: str | None = Field(None, description="as structured_outputs.regex")
    guided_grammar: str | None = Field(None, description="as structured_outputs.grammar")
    guided_choice: list[str] | None = Field(None, description="as structured_outputs.choice")

    def structure(self) -> StructuredOutputsParams | None:
        """Raises ValueError that begins with the name of the field that is wrong."""
        asked = {name: wish for name in StructuredFields.model_fields if (wish := self._wish(name))}
        if len(asked) > 1:
            first, second, *_ = asked
            raise ValueError(f"{first} and {second} both say what the output must follow; give one of them")
        for name, wish in asked.items():
            try:
                return StructuredOutputsParams(**wish)
            except ValueError as error:
                raise ValueError(f"{name}: {error}") from None
        return None

    def _wish(self, name: str) -> dict[str, Any]:
        """What a field asks for as arguments of StructuredOutputsParams; nothing where it is left out."""
        value = getattr(self, name)
        if value is None:
            return {}
        if name == "response_format":
            return _of_response_format(value)
        if name == "structured_outputs":
            wish = {key: item for key, item in value.items() if key in _NAMES and item is not None}
            if not wish:
                raise ValueError(f"structured_outputs must have one of {', '.join(sorted(_NAMES))}, got {show(value)}")
            return wish
        return {name.removeprefix("guided_"): value}


def _of_response_format(value: dict[str, Any]) -> dict[str, Any]:
    kind = value.get("type")
    if kind == "text":
        return {}
    if kind == "json_object":
        return {"json_object": True}
    if kind != "json_schema":
        raise ValueError(f"response_format: type must be text, json_object or json_schema, got {show(kind)}")
    described = value.get("json_schema")
    if not isinstance(described, dict) or "schema" not in described:
        raise ValueError("response_format: json_schema must be an object with a schema")
    return {"json": described["schema"]}
