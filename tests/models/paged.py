"""Runs a decoder over a paged KV cache as adverse as allowed: scattered blocks, NaN memory, poisoned table tails."""

from __future__ import annotations

import random
from collections.abc import Sequence

import torch
from torch import Tensor

from cudaprefill.engine.batch import Batch
from cudaprefill.engine.kv_cache import KVCache
from cudaprefill.models import Decoder

_POISON = 2**31 - 1  # a block id that no table entry within a context may have


class PagedRunner:
    """Requests are named; each `step` is one batch of decodes and chunks."""

    def __init__(self, decoder: Decoder, num_blocks: int = 64, block_size: int = 16, seed: int = 0) -> None:
        config = decoder.config
        self.decoder = decoder
        self.kv_cache = KVCache(
            config.num_layers,
            num_blocks,
            config.num_kv_heads,
            block_size,
            config.head_size,
            decoder.activation_dtype,
            decoder.device,
        )
        self.kv_cache.data.fill_(float("nan"))
        self._free = random.Random(seed).sample(range(num_blocks), num_blocks)
        self._tables: dict[str, list[int]] = {}
        self._lengths: dict[str, int] = {}

    def share_prefix(self, source: str, request: str, num_blocks: int) -> int:
        """Starts `request` on the first blocks of `source`; returns the number of cached tokens."""
        self._tables[request] = self._tables[source][:num_blocks]
        self._lengths[request] = num_blocks * self.kv_cache.block_size
        return self._lengths[request]

    @torch.inference_mode()
    def step(
        self,
        decodes: dict[str, int] | None = None,
        chunks: dict[str, list[int]] | None = None,
        sampled: Sequence[str] | None = None,
    ) -> dict[str, Tensor]:
        """Computes one token of each decode and the tokens of each chunk; the logits of all rows, by request.

        sampled: in the order of the step, the requests whose last row is wanted, and no other row.
        """
        work = {request: [token] for request, token in (decodes or {}).items()} | (chunks or {})
        token_ids: list[int] = []
        position_ids: list[int] = []
        slot_mapping: list[int] = []
        cu_seqlens_q = [0]
        for request, tokens in work.items():
            start = self._lengths.get(request, 0)
            table = self._grow(request, start + len(tokens))
            size = self.kv_cache.block_size
            token_ids += tokens
            position_ids += range(start, start + len(tokens))
            slot_mapping += [table[p // size] * size + p % size for p in range(start, start + len(tokens))]
            cu_seqlens_q.append(len(token_ids))
        width = max(len(self._tables[request]) for request in work) + 2
        tables = [self._tables[request] + [_POISON] * (width - len(self._tables[request])) for request in work]
        names = list(work)
        ends = [(cu_seqlens_q[names.index(name) + 1] - 1, names.index(name)) for name in sampled or ()]
        batch = Batch(
            token_ids=torch.tensor(token_ids),
            position_ids=torch.tensor(position_ids),
            slot_mapping=torch.tensor(slot_mapping),
            cu_seqlens_q=torch.tensor(cu_seqlens_q, dtype=torch.int32),
            context_lens=torch.tensor([self._lengths[request] for request in work], dtype=torch.int32),
            block_table=torch.tensor(tables, dtype=torch.int32),
            logits_rows=torch.tensor([row for row, _ in ends], dtype=torch.int64),
            logits_requests=torch.tensor([request for _, request in ends], dtype=torch.int64),
            block_copies=torch.empty(0, 2, dtype=torch.int64),
            num_decodes=len(decodes or {}),
        )
        logits = self.decoder.logits(self.decoder.forward(batch, self.kv_cache, sampled_only=sampled is not None))
        if sampled is not None:
            return {name: logits[place : place + 1] for place, name in enumerate(sampled)}
        return dict(zip(work, logits.split([len(tokens) for tokens in work.values()]), strict=True))

    def _grow(self, request: str, length: int) -> list[int]:
        table = self._tables.setdefault(request, [])
        while len(table) * self.kv_cache.block_size < length:
            table.append(self._free.pop())
        self._lengths[request] = length
        return table
