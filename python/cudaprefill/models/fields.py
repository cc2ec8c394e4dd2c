"""Typed reading of a model's metadata, with errors that name the file, the key and the value."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from cudaprefill.models.errors import UnsupportedModelError
from cudaprefill.sampling_params import show

MAX_LAYERS = 10_000


class Fields:
    """Values by key; null counts as absent, and what is absent without a default is an error."""

    error: ClassVar[type[ValueError]] = UnsupportedModelError

    def __init__(self, values: Mapping[str, Any], where: str) -> None:
        self.values = values
        self.where = where

    def get(self, key: str, default: Any = None) -> Any:
        value = self.values.get(key)
        return default if value is None else value

    def integer(self, key: str, default: int | None = None, *, minimum: int = 1) -> int:
        value = self._required(key, default)
        if not isinstance(value, int) or isinstance(value, bool) or value < minimum:
            raise self.error(f"{self.where}: {key} must be an integer of at least {minimum}, got {show(value)}")
        return value

    def num_layers(self, key: str) -> int:
        """At most `MAX_LAYERS`, so that a damaged file is refused before anything is made for each of them."""
        count = self.integer(key)
        if count > MAX_LAYERS:
            raise UnsupportedModelError(f"{self.where}: {key} must be at most {MAX_LAYERS}, got {count}")
        return count

    def optional_integer(self, key: str) -> int | None:
        """At least 1 where it is there."""
        return None if self.get(key) is None else self.integer(key)

    def number(self, key: str, default: float | None = None) -> float:
        value = self._required(key, default)
        if not isinstance(value, (int, float)) or isinstance(value, bool) or not 0 < value < float("inf"):
            raise self.error(f"{self.where}: {key} must be a number above 0, got {show(value)}")
        return float(value)

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
