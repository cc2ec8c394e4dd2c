"""What runs before there is a KV cache, so that the memory it takes can be measured and kept free."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from cudaprefill.engine.batch import Batch
from cudaprefill.engine.cuda_graphs import Capture, DecodeGraphRunner
from cudaprefill.engine.kv_cache import KVCache
from cudaprefill.engine.model_runner import ModelRunner
from cudaprefill.models import Decoder


def prompt_batch(token_ids: Tensor, block_size: int) -> Batch:
    """A prompt as one step, in the first blocks of a cache. token_ids: [T] int64."""
    device, tokens = token_ids.device, token_ids.shape[0]
    positions = torch.arange(tokens, device=device)
    return Batch(
        token_ids=token_ids,
        position_ids=positions,
        slot_mapping=positions,
        cu_seqlens_q=torch.tensor([0, tokens], dtype=torch.int32, device=device),
        context_lens=torch.tensor([tokens], dtype=torch.int32, device=device),
        block_table=torch.arange(-(-tokens // block_size), dtype=torch.int32, device=device)[None],
        logits_rows=positions[-1:],
        logits_requests=positions[:1],
        block_copies=torch.empty((0, 2), dtype=torch.int64, device=device),
        num_decodes=0,
    )


@dataclass(frozen=True)
class DryRun:
    """A model and the sizes of its steps."""

    model: Decoder
    max_num_batched_tokens: int
    max_num_seqs: int
    max_model_len: int
    block_size: int
    kv_dtype: torch.dtype

    def run_largest_step(self) -> None:
        """One prompt that takes the whole token budget: what needs the most memory beside weights, KV and graphs."""
        tokens = min(self.max_num_batched_tokens, self.max_model_len)
        batch = prompt_batch(torch.zeros(tokens, dtype=torch.int64, device=self.model.device), self.block_size)
        ModelRunner(self.model, self._kv_cache(batch.block_table.shape[1])).run(batch)

    def capture_graphs(self, capture: Capture) -> DecodeGraphRunner:
        """The graphs of all decode steps. They cannot be replayed: their KV cache is one block, seen many times."""
        kv_cache = self._kv_cache(1)
        kv_cache.num_blocks = -(-self.max_model_len // self.block_size)
        shape = (kv_cache.num_blocks, -1, -1, -1)
        # A capture writes no KV and reads none, as its rows are padding.
        kv_cache.layers = [
            cache._replace(k=cache.k.expand(shape), v=cache.v.expand(shape)) for cache in kv_cache.layers
        ]
        return DecodeGraphRunner(self.model, kv_cache, self.max_num_seqs, self.max_model_len, capture)

    def _kv_cache(self, num_blocks: int) -> KVCache:
        """One layer's memory stands in for all: a measurement must not need what is yet to be sized."""
        config = self.model.config
        kv_cache = KVCache(
            1, num_blocks, config.num_kv_heads, self.block_size, config.head_size, self.kv_dtype, self.model.device
        )
        kv_cache.layers *= config.num_layers
        return kv_cache
