"""adapter_config.json, read strictly: a key that nobody here knows and that says something is an error.

PEFT adds keys with every version, and most ask for nothing when they are null, false or empty; those pass.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from cudaprefill.adapters.errors import AdapterError
from cudaprefill.adapters.files import CONFIG
from cudaprefill.models.fields import Fields
from cudaprefill.sampling_params import show

# Keys of every kind that say where an adapter comes from and change no result.
_DESCRIPTIVE = frozenset(
    {"auto_mapping", "base_model_name_or_path", "inference_mode", "peft_type", "peft_version", "revision", "task_type"}
)


class AdapterFields(Fields):
    """Values of one adapter_config.json by key."""

    error = AdapterError

    def __init__(self, values: Mapping[str, Any]) -> None:
        super().__init__(values, CONFIG)

    @property
    def peft_type(self) -> str:
        kind = self.get("peft_type")
        if not isinstance(kind, str):
            raise AdapterError(f"{CONFIG}: peft_type must be the name of a kind of adapter, got {show(kind)}")
        return kind

    @property
    def made_for(self) -> str:
        """The base model that the adapter names, for messages."""
        name = self.get("base_model_name_or_path")
        return "a model that it does not name" if name is None else show(name)

    def know_only(self, keys: Collection[str]) -> None:
        """Raises AdapterError for a key outside `keys` that asks for something, and for tasks other than CAUSAL_LM."""
        self.only("task_type", "CAUSAL_LM")
        self.only("modules_to_save", [])
        for key, value in self.values.items():
            if key not in _DESCRIPTIVE and key not in keys and value:
                raise AdapterError(f"{CONFIG}: {key} = {show(value)} is not supported for {self.peft_type}")

    def fits(self, key: str, expected: int, what: str) -> None:
        """Raises AdapterError where the key is there and is not the base model's number."""
        value = self.get(key)
        if value is not None and value != expected:
            raise AdapterError(
                f"{CONFIG}: {key} is {show(value)}, but the model has {what} {expected}; "
                f"the adapter was made for {self.made_for}"
            )
