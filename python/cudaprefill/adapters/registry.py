"""Which adapters are loaded, by name."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from torch import Tensor

from cudaprefill.adapters.adapter import Adapter, AdapterTarget
from cudaprefill.adapters.config import AdapterFields
from cudaprefill.adapters.errors import AdapterError, UnknownAdapterError
from cudaprefill.adapters.files import CONFIG, read_config, read_tensors
from cudaprefill.adapters.lora import load_lora_adapter, most_lora_numbers
from cudaprefill.adapters.prefix import load_prefix_adapter
from cudaprefill.adapters.prompt import load_prompt_adapter
from cudaprefill.sampling_params import show

# Makes an adapter of a name, its folder, its configuration and its tensors, or raises AdapterError.
Loader = Callable[[str, Path, AdapterFields, Mapping[str, Tensor], AdapterTarget], Adapter]

LOADERS: dict[str, Loader] = {
    "PROMPT_TUNING": load_prompt_adapter,
    "P_TUNING": load_prompt_adapter,
    "PREFIX_TUNING": load_prefix_adapter,
    "LORA": load_lora_adapter,
}


MAX_NAME = 256  # characters: a name is a label of metrics, and in every answer


class AdapterRegistry:
    """May be called from any thread. Loading reads files: call it where that may take its time."""

    def __init__(self, target: AdapterTarget | None = None) -> None:
        """None: there is no model that an adapter could fit."""
        self.target = target
        self._lock = threading.Lock()
        self._adapters: dict[str, Adapter] = {}

    def __iter__(self) -> Iterator[Adapter]:
        """In the order in which they were loaded."""
        return iter(list(self._adapters.values()))

    @property
    def names(self) -> list[str]:
        """In the order in which they were loaded."""
        return list(self._adapters)

    def __contains__(self, name: object) -> bool:
        return name in self._adapters

    def get(self, name: str) -> Adapter:
        """Raises UnknownAdapterError."""
        adapter = self._adapters.get(name)
        if adapter is None:
            raise UnknownAdapterError(f"no adapter {name!r} is loaded")
        return adapter

    def name_of(self, content_hash: bytes) -> str:
        """For people: the name of a loaded adapter, or the beginning of the hash."""
        for adapter in self:
            if adapter.content_hash == content_hash:
                return adapter.name
        return f"{content_hash.hex()[:12]} (not loaded)"

    def load(self, name: str, folder: str | os.PathLike[str], *, in_place: bool = False) -> Adapter:
        """Reads an adapter. Raises AdapterError saying what is wrong, or that the name is taken.

        in_place: where the name is taken, this one takes the other's place; who has the other goes on with it.
        """
        if not isinstance(name, str) or not 0 < len(name) <= MAX_NAME or not name.isprintable():
            raise AdapterError(f"the name of an adapter must be 1 to {MAX_NAME} printable characters, got {show(name)}")
        if self.target is None:
            raise AdapterError("this engine takes no adapters")
        if not in_place:
            self._refuse_taken(name)
        path = Path(folder)
        fields = AdapterFields(read_config(path))
        loader = LOADERS.get(fields.peft_type)
        if loader is None:
            raise AdapterError(
                f"{CONFIG}: adapters of the type {show(fields.peft_type)} are not served, only {', '.join(LOADERS)}"
            )
        adapter = loader(name, path, fields, read_tensors(path, _most_bytes(self.target)), self.target)
        with self._lock:
            if not in_place:
                self._refuse_taken(name)
            self._adapters[name] = adapter
        return adapter

    def withdraw(self, name: str) -> Adapter:
        """Frees the name at once; `Adapter.unload` is still to be called, in the engine's thread.

        Raises UnknownAdapterError.
        """
        with self._lock:
            adapter = self.get(name)
            del self._adapters[name]
        return adapter

    def _refuse_taken(self, name: str) -> None:
        if name in self._adapters:
            raise AdapterError(f"an adapter {name!r} is loaded already, from {self._adapters[name].folder}")


def _most_bytes(target: AdapterTarget) -> int:
    """What the tensors of the largest adapter of any kind take in float32."""
    model = target.model
    of_position = max(model.hidden_size, model.num_layers * 2 * model.num_kv_heads * model.head_size)
    return 4 * max(target.max_model_len * of_position, most_lora_numbers(model))
