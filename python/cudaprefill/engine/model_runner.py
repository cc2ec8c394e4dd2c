"""Arrays in, logits out: the forward pass of one step."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from cudaprefill import ops
from cudaprefill.engine.batch import Batch
from cudaprefill.engine.kv_cache import KVCache


class Model(Protocol):
    """What a step needs of a model."""

    def forward(self, batch: Batch, kv_cache: KVCache, *, sampled_only: bool = False) -> Tensor:
        """Hidden states [T, H], or [R, H] of the rows that are sampled; writes the K and V of all T tokens."""

    def logits(self, hidden: Tensor) -> Tensor:
        """Of each row of hidden [R, H]: [R, V] float32."""


class ModelRunner:
    """Runs a model over the paged KV cache."""

    def __init__(self, model: Model, kv_cache: KVCache) -> None:
        self.model = model
        self.kv_cache = kv_cache

    @torch.inference_mode()
    def run(self, batch: Batch) -> Tensor:
        """Logits [R, V] float32 of the batch's `logits_rows`."""
        self.prepare_cache(batch)
        return self.logits(self.model.forward(batch, self.kv_cache, sampled_only=True))

    @torch.inference_mode()
    def hidden(self, batch: Batch) -> Tensor:
        """Hidden states [T, H] of all rows."""
        self.prepare_cache(batch)
        return self.model.forward(batch, self.kv_cache)

    @torch.inference_mode()
    def logits(self, hidden: Tensor) -> Tensor:
        """Of each row of hidden [R, H]: [R, V] float32."""
        return self.model.logits(hidden)

    def prepare_cache(self, batch: Batch) -> None:
        """What the forward pass finds in the KV cache: copies of blocks to write into, and K and V that are given."""
        if batch.block_copies.shape[0]:
            for cache in self.kv_cache.layers:
                ops.copy_blocks(cache.k, cache.v, batch.block_copies)
        for given in batch.given_kv:
            for (keys, values), cache in zip(given.keys_values, self.kv_cache.layers, strict=True):
                ops.write_kv(keys, values, cache.k, cache.v, given.slots, cache.k_scale, cache.v_scale)
