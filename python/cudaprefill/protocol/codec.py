"""Messages to JSON text and back. What comes in is checked field by field against the data class."""

from __future__ import annotations

import dataclasses
import functools
import json
import math
import types
import typing
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

Message = TypeVar("Message")


class ProtocolError(ValueError):
    """A message that cannot be understood; `param` names the field, where it is one field's fault.

    Both are valid Unicode whatever the message had: lone surrogates are escaped.
    """

    def __init__(self, reason: str, param: str | None = None) -> None:
        super().__init__(_valid_unicode(reason))
        self.param = None if param is None else _valid_unicode(param)


def _valid_unicode(text: str) -> str:
    return text.encode(errors="backslashreplace").decode()


def encode(message: object) -> str:
    """One JSON object, without fields that are None. `message` is an instance of a data class."""
    # The encoder walks lists of numbers by itself, in C: a snapshot may hold a hundred thousand.
    return json.dumps(_fields(message), default=_fields, ensure_ascii=False, separators=(",", ":"), allow_nan=False)


def decode(text: str, kinds: Mapping[str, type[Message]]) -> Message:
    """The message that `text` holds; `kinds` maps each "type" that is welcome to its data class.

    Raises ProtocolError saying what is wrong. Fields that the data class does not know are ignored, as in any protocol
    that is to grow.
    """
    fields = parse_object(text)
    kind = fields.get("type")
    if not isinstance(kind, str) or kind not in kinds:
        raise ProtocolError(f"type must be one of {', '.join(kinds)}, got {_show(kind)}", "type")
    return build(kinds[kind], fields)


def parse_object(text: str) -> dict[str, Any]:
    """Strict JSON: no NaN, no Infinity, no number beyond a float's range, no lone surrogate. Raises ProtocolError."""
    try:
        value = json.loads(text, parse_constant=_refuse_constant, parse_float=_finite)
        if not isinstance(value, dict):
            raise ProtocolError(f"a message must be a JSON object, got {_show(value)}")
        if "\\u" in text:  # the one way for a lone surrogate to come in
            json.dumps(value, ensure_ascii=False).encode()
    except ProtocolError as error:
        param = _field_without_a_number(text)
        raise ProtocolError(f"{param}: {error}" if param else str(error), param) from None
    except UnicodeEncodeError:
        raise ProtocolError("a message must be valid Unicode: it has a lone surrogate") from None
    except (ValueError, RecursionError) as error:
        reason = "it is nested too deeply" if isinstance(error, RecursionError) else str(error)
        raise ProtocolError(f"a message must be valid JSON: {reason}") from None
    return value


def build(kind: type[Message], fields: Mapping[str, Any], path: str = "") -> Message:
    """An instance of a data class from JSON values. Raises ProtocolError naming the field."""
    hints = _hints(kind)  # type: ignore[arg-type]
    values = {}
    for field in dataclasses.fields(kind):  # type: ignore[arg-type]
        if not field.init:
            continue
        name = f"{path}{field.name}"
        if fields.get(field.name) is not None:
            values[field.name] = _value(hints[field.name], fields[field.name], name)
        elif field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING:
            raise ProtocolError(f"{name} is missing", name)
    return kind(**values)


def _value(hint: Any, value: Any, name: str) -> Any:
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is typing.Union or origin is types.UnionType:
        return _one_of([argument for argument in arguments if argument is not type(None)], value, name)
    if origin is typing.Literal:
        if value not in arguments or isinstance(value, bool) != isinstance(arguments[0], bool):
            raise ProtocolError(f"{name} must be one of {', '.join(map(str, arguments))}, got {_show(value)}", name)
        return value
    if origin in (list, Sequence):
        if not isinstance(value, list):
            raise ProtocolError(f"{name} must be a list, got {_show(value)}", name)
        if arguments[0] is int and all(type(item) is int for item in value):  # a block table may be long
            return value
        return [_value(arguments[0], item, f"{name}[{index}]") for index, item in enumerate(value)]
    if origin is tuple:
        if not isinstance(value, list) or len(value) != len(arguments):
            raise ProtocolError(f"{name} must be a list of {len(arguments)}, got {_show(value)}", name)
        return tuple(
            _value(argument, item, f"{name}[{index}]")
            for index, (argument, item) in enumerate(zip(arguments, value, strict=True))
        )
    if origin in (dict, Mapping):
        if not isinstance(value, dict):
            raise ProtocolError(f"{name} must be an object, got {_show(value)}", name)
        return {key: _value(arguments[1], item, f"{name}.{key}") for key, item in value.items()}
    if isinstance(hint, type) and dataclasses.is_dataclass(hint):
        if not isinstance(value, dict):
            raise ProtocolError(f"{name} must be an object, got {_show(value)}", name)
        return build(hint, value, f"{name}.")
    if hint is Any or hint is object:
        return value
    return _scalar(hint, value, name)


def _one_of(hints: Sequence[Any], value: Any, name: str) -> Any:
    errors = []
    for hint in hints:
        try:
            return _value(hint, value, name)
        except ProtocolError as error:
            errors.append(error)
    # The alternative that got furthest into the value says best what is wrong.
    raise max(errors, key=lambda error: len(error.param or ""))


def _scalar(hint: type, value: Any, name: str) -> Any:
    if hint is float and isinstance(value, int) and not isinstance(value, bool):
        try:
            return float(value)
        except OverflowError:
            raise ProtocolError(f"{name} must be finite, got an integer of {value.bit_length()} bits", name) from None
    if isinstance(value, bool) != (hint is bool) or not isinstance(value, hint):
        words = {str: "a string", int: "an integer", float: "a number", bool: "true or false"}
        raise ProtocolError(f"{name} must be {words[hint]}, got {_show(value)}", name)
    return value


def _fields(message: Any) -> dict[str, Any]:
    if not dataclasses.is_dataclass(message) or isinstance(message, type):
        raise TypeError(f"{type(message).__name__} is no data class of a message")
    fields = ((name, getattr(message, name)) for name in _names(type(message)))
    return {name: value for name, value in fields if value is not None}


@functools.cache
def _names(kind: Any) -> tuple[str, ...]:
    return tuple(field.name for field in dataclasses.fields(kind))


@functools.cache
def _hints(kind: Any) -> dict[str, Any]:
    return typing.get_type_hints(kind)


def _field_without_a_number(text: str) -> str | None:
    """The field that has NaN, Infinity or a number that is too large, where nothing else is wrong with `text`."""
    try:
        fields = json.loads(text)
    except (ValueError, RecursionError):
        return None
    if not isinstance(fields, dict):
        return None
    return next((name for name, value in fields.items() if isinstance(value, float) and not math.isfinite(value)), None)


def _refuse_constant(name: str) -> float:
    raise ProtocolError(f"a message must be valid JSON: it has {name}")


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ProtocolError(f"a number is too large: {_show(text)}")
    return number


def _show(value: object) -> str:
    try:
        text = json.dumps(value)
    except ValueError:  # an integer of more digits than Python prints
        text = f"a {type(value).__name__}"
    return text if len(text) <= 80 else f"{text[:77]}..."
