"""What every kind of adapter has: a name, its content's hash, and a count of the requests that use it."""

from __future__ import annotations

import threading
import time
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path

import torch

from cudaprefill.adapters.errors import UnknownAdapterError
from cudaprefill.adapters.lora_weights import LoraWeights
from cudaprefill.adapters.virtual_tokens import NO_VIRTUAL_TOKENS, VirtualTokens
from cudaprefill.models.config import ModelConfig


@dataclass(frozen=True)
class AdapterTarget:
    """What an adapter must fit: the model, and how the engine runs it."""

    model: ModelConfig
    device: torch.device
    activation_dtype: torch.dtype
    kv_dtype: torch.dtype
    max_model_len: int
    int8: bool = False  # activations are rounded to 8 bits for the products with weights


class Adapter:
    """One version of one adapter, ready on the engine's device. Compared by identity.

    kind: as people call it: "prompt tuning", "LoRA".
    content_hash: of the configuration and all tensors, so a name that is loaded again with other content is another
        adapter, and the same content under two names shares its blocks.
    virtual_tokens: what it puts in front of each prompt.
    lora: what it adds to linear layers.
    """

    def __init__(
        self,
        name: str,
        folder: Path,
        kind: str,
        content_hash: bytes,
        virtual_tokens: VirtualTokens = NO_VIRTUAL_TOKENS,
        lora: LoraWeights | None = None,
    ) -> None:
        self.name = name
        self.folder = folder
        self.kind = kind
        self.content_hash = content_hash
        self.virtual_tokens = virtual_tokens
        self.lora = lora
        self.loaded_at = time.time()  # seconds since 1970
        self._lock = threading.Lock()
        self._num_uses = 0
        self._unloaded: Future[None] | None = None

    @property
    def extra_key(self) -> tuple[str, bytes]:
        """Its part of the keys under which the prefix index has its blocks."""
        return ("adapter", self.content_hash)

    @property
    def num_uses(self) -> int:
        """Requests that the scheduler has of it."""
        return self._num_uses

    def begin_uses(self, count: int) -> None:
        """So many requests come in. Raises UnknownAdapterError once the adapter is being unloaded."""
        with self._lock:
            if self._unloaded is not None:
                raise UnknownAdapterError(f"the adapter {self.name!r} was unloaded")
            self._num_uses += count

    def end_use(self) -> None:
        """One of them has ended."""
        with self._lock:
            self._num_uses -= 1
            last = self._unloaded if self._num_uses == 0 else None
        if last is not None:
            last.set_result(None)

    def unload(self) -> Future[None]:
        """Refuses new requests from now on. The result comes when the last one has ended."""
        with self._lock:
            if self._unloaded is None:
                self._unloaded = Future()
                self._unloaded.set_running_or_notify_cancel()  # who waits may give up, but the engine sets the result
                if self._num_uses == 0:
                    self._unloaded.set_result(None)
            return self._unloaded
