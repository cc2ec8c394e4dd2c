"""Every field of StructuredOutputsParams is checked, and what is refused is refused by its name."""

from __future__ import annotations

import json
from typing import Any

import pytest

from cudaprefill.sampling_params import SamplingParams, StructuredOutputsParams

DEEP = '{"items":' * 10_000 + "{}" + "}" * 10_000


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({}, "exactly one of json, regex, grammar, choice and json_object, got none"),
        ({"regex": "a", "json": "{}"}, "got json and regex"),
        ({"regex": "a", "json_object": True}, "got regex and json_object"),
        ({"json_object": 1}, "json_object must be true or false, got 1"),
        ({"json": 5}, "json must be a JSON schema, as text or as a dict, got int"),
        ({"json": "{"}, "json is not a JSON schema"),
        ({"json": {"enum": {1, 2}}}, "json is not a JSON schema"),
        ({"json": {"const": float("nan")}}, "json is not a JSON schema"),
        ({"json": DEEP}, "at most"),
        ({"json": DEEP[: 9 * 100] + "{}" + "}" * 100}, "json may have at most 64 levels"),
        ({"json": " " * 65_537}, "json may have at most 65536 characters, got 65537"),
        ({"json": {"items": {"$ref": "http://localhost/a"}}}, "json: $ref must begin with #/ and stay"),
        ({"json": {"anyOf": [{"$ref": "#a"}]}}, "in the schema, got '#a'"),
        ({"json": {"pattern": "(a{1000}){1000}"}}, "json: pattern: counts may multiply to at most 10000, got 1000000"),
        ({"json": {"items": [{"patternProperties": {"(a?){9}": {}}}]}}, "json: pattern: {9} at position 4 counts"),
        ({"regex": 5}, "regex must be a string, got 5"),
        ({"regex": "a" * 4097}, "regex may have at most 4096 characters, got 4097"),
        ({"regex": "(a{1000}){1000}"}, "regex: counts may multiply to at most 10000, got 1000000"),
        ({"regex": "\ud800"}, "regex must be valid Unicode"),
        ({"grammar": b"root"}, "grammar must be a string"),
        ({"grammar": "a" * 16_385}, "grammar may have at most 16384 characters, got 16385"),
        ({"choice": "ab"}, "choice must be a list of strings, got 'ab'"),
        ({"choice": []}, "choice must have 1 to 1024 strings, got 0"),
        ({"choice": ["a"] * 1025}, "choice must have 1 to 1024 strings, got 1025"),
        ({"choice": ["a", 5]}, "choice must be a string, got 5"),
        ({"choice": ["a" * 20_000] * 2}, "choice may have at most 32768 characters in all, got 40000"),
    ],
)
def test_what_is_wrong_is_named(fields: dict[str, Any], reason: str) -> None:
    with pytest.raises(ValueError) as caught:  # noqa: PT011
        StructuredOutputsParams(**fields)
    assert reason in str(caught.value)
    assert len(str(caught.value)) < 400


def test_a_schema_nested_so_deep_that_python_gives_up_is_refused() -> None:
    schema: dict[str, Any] = {}
    for _ in range(10_000):
        schema = {"items": schema}
    with pytest.raises(ValueError, match="json may have at most"):
        StructuredOutputsParams(json=schema)


def test_a_schema_is_kept_as_text_whichever_way_it_is_given() -> None:
    schema = {"type": "object", "properties": {"é": {"pattern": "a{3}"}}}
    for given in (schema, json.dumps(schema)):
        kept = StructuredOutputsParams(json=given).json
        assert isinstance(kept, str)
        assert json.loads(kept) == schema


@pytest.mark.parametrize("value", [{"regex": "a"}, "a", True])
def test_sampling_params_take_nothing_else(value: Any) -> None:
    with pytest.raises(ValueError, match="structured_outputs must be StructuredOutputsParams, got"):
        SamplingParams(structured_outputs=value)
