"""The attention ops on a made batch: each gives its output, which was NaN before."""

from __future__ import annotations

import torch
from torch import Tensor

from cudaprefill import ops
from tests.ops.attention_reference import PagedBatch


def prefill(batch: PagedBatch, window: int = 0, softcap: float = 0.0) -> Tensor:
    out = torch.full_like(batch.q, torch.nan)
    ops.prefill_attention(
        batch.q,
        batch.k_cache,
        batch.v_cache,
        batch.block_table,
        batch.cu_seqlens_q,
        batch.context_lens,
        out,
        batch.scale,
        window,
        softcap,
        batch.k_scale,
        batch.v_scale,
    )
    return out


def decode(batch: PagedBatch, window: int = 0, softcap: float = 0.0) -> Tensor:
    out = torch.full_like(batch.q, torch.nan)
    ops.decode_attention(
        batch.q,
        batch.k_cache,
        batch.v_cache,
        batch.block_table,
        batch.context_lens,
        out,
        batch.scale,
        window,
        softcap,
        batch.k_scale,
        batch.v_scale,
    )
    return out


def attend(batch: PagedBatch, num_decodes: int, window: int = 0, softcap: float = 0.0) -> Tensor:
    out = torch.full_like(batch.q, torch.nan)
    ops.mixed_attention(
        batch.q,
        batch.k_cache,
        batch.v_cache,
        batch.block_table,
        batch.cu_seqlens_q,
        batch.context_lens,
        out,
        num_decodes,
        batch.scale,
        window,
        softcap,
        batch.k_scale,
        batch.v_scale,
    )
    return out
