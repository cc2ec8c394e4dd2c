"""Regular expressions out of an adapter's configuration, which may come from anybody.

They are matched by Rust's engine, whose time grows with the text alone. Python's would try all ways to split a name
among nested repetitions, for hours where somebody wants it to, and no other thread would run meanwhile. The price is
that look-around and references back are refused.
"""

from __future__ import annotations

import re
from functools import lru_cache

from pydantic_core import SchemaError, SchemaValidator, core_schema

from cudaprefill.adapters.errors import AdapterError
from cudaprefill.adapters.files import CONFIG

ANY_PARENT = r"(?:.*\.)?"  # of a module: the beginning of its name, up to a dot


def matches(key: str, pattern: str, name: str, *, before: str = "", after: str = "") -> bool:
    """Whether the whole of `name` is what `before`, `pattern` and `after` stand for, one behind the other.

    Raises AdapterError naming `key`, under which the configuration has the pattern, where it is none.
    """
    try:
        return _compiled(pattern, before, after).isinstance_python(name)
    except SchemaError as error:
        reason = re.split("[Ee]rror: ", str(error).strip())[-1]
        raise AdapterError(f"{CONFIG}: {key} is no regular expression that is served: {reason}") from None


@lru_cache(maxsize=64)
def _compiled(pattern: str, before: str, after: str) -> SchemaValidator:
    _checked(pattern)  # by itself, so that a bracket too many does not end the group around it
    return _checked(rf"\A{before}(?:{pattern}){after}\z")


def _checked(pattern: str) -> SchemaValidator:
    return SchemaValidator(core_schema.str_schema(pattern=pattern))
