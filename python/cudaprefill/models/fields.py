"""Typed reading of a model's metadata, with errors that name the file, the key and the value."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from cudaprefill.models.errors import UnsupportedModelError
from cudaprefill.sampling_params import show

MAX_LAYERS = MAX_EXPERTS = 10_000  # so that a damaged file is refused before anything is made for each of them
MAX_INTEGER = 2**31 - 1  # nothing that a model counts is more
MAX_NUMBER = 3.4e38  # about the largest of float32


class Fields:
    """Values by key; null counts as absent, and what is absent without a default is an error."""

    error: ClassVar[type[ValueError]] = UnsupportedModelError

    def __init__(self, values: Mapping[str, Any], where: str) -> None:
        self.values = values
        self.where = where

    def get(self, key: str, default: Any = None) -> Any:
        value = self.values.get(key)
        return default if value is None else value

    def integer(self, key: str, default: int | None = None, *, minimum: int = 1, maximum: int = MAX_INTEGER) -> int:
        value = self._required(key, default)
        if not isinstance(value, int) or isinstance(value, bool) or value < minimum:
            raise self.error(f"{self.where}: {key} must be an integer of at least {minimum}, got {show(value)}")
        if value > maximum:
            raise self.error(f"{self.where}: {key} must be at most {maximum}, got {show(value)}")
        return value

    def num_layers(self, key: str) -> int:
        return self.integer(key, maximum=MAX_LAYERS)

    def num_experts(self, key: str, default: int | None = None) -> int:
        return self.integer(key, default, maximum=MAX_EXPERTS)

    def optional_integer(self, key: str) -> int | None:
        """At least 1 where it is there."""
        return None if self.get(key) is None else self.integer(key)

    def number(self, key: str, default: float | None = None) -> float:
        value = self._required(key, default)
        if not isinstance(value, (int, float)) or isinstance(value, bool) or not value > 0:
            raise self.error(f"{self.where}: {key} must be a number above 0, got {show(value)}")
        if value > MAX_NUMBER:
            raise self.error(f"{self.where}: {key} must be at most {MAX_NUMBER}, got {show(value)}")
        return float(value)

    def optional_text(self, key: str) -> str | None:
        value = self.get(key)
        if value is not None and not isinstance(value, str):
            raise self.error(f"{self.where}: {key} must be text, got {show(value)}")
        return value

    def optional_texts(self, key: str) -> list[str] | None:
        value = self.get(key)
        if value is not None and not (isinstance(value, list) and all(isinstance(each, str) for each in value)):
            raise self.error(f"{self.where}: {key} must be a list of texts, got {show(value)}")
        return value

    def mapping(self, key: str) -> Mapping[str, Any]:
        """Empty where it is absent."""
        value = self.get(key, {})
        if not isinstance(value, Mapping):
            raise self.error(f"{self.where}: {key} must be an object, got {show(value)}")
        return value

    def flag(self, key: str, default: bool = False) -> bool:
        value = self._required(key, default)
        if not isinstance(value, bool):
            raise self.error(f"{self.where}: {key} must be true or false, got {show(value)}")
        return value

    def only(self, key: str, *allowed: Any) -> None:
        """Raises unless the value is absent or one of `allowed`."""
        value = self.get(key)
        if value is not None and value not in allowed:
            raise self.unsupported(key, value, *allowed)

    def unsupported(self, key: str, value: object, *allowed: Any) -> ValueError:
        remedy = f", only {' or '.join(map(repr, allowed))}" if allowed else ""
        return self.error(f"{self.where}: {key} = {show(value)} is not supported{remedy}")

    def _required(self, key: str, default: Any) -> Any:
        value = self.get(key, default)
        if value is None:
            raise self.error(f"{self.where}: {key} is missing")
        return value
