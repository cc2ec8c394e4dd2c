"""The attention of one step, for the same rows of every layer."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cudaprefill import ops

if TYPE_CHECKING:
    from torch import Tensor

    from cudaprefill.engine.batch import Batch
    from cudaprefill.engine.kv_cache import LayerCache
    from cudaprefill.models.config import ModelConfig


class StepAttention:
    """Attention of rows of a batch over the paged KV of their requests; one output, written anew for each layer."""

    def __init__(self, config: ModelConfig, batch: Batch, out: Tensor, *, at_once: bool, sampled_only: bool) -> None:
        """out: [R, Hq, D], for the T rows of the batch, or for those that are sampled.

        A row that is sampled is the last one of its request, so it sees what a decode sees: it is one.
        at_once: decodes and chunks of a step are one op, which may be one launch; else they are two.
        """
        table, lengths, starts = batch.block_table, batch.context_lens, batch.cu_seqlens_q
        num_decodes = batch.num_decodes
        if sampled_only:
            table = table.index_select(0, batch.logits_requests)
            lengths = lengths.index_select(0, batch.logits_requests)
            num_decodes = lengths.shape[0]
        has_chunks = lengths.shape[0] > num_decodes
        self._out = out
        self._rows = out.view(out.shape[0], -1)
        self._num_decodes = num_decodes
        self._mixed = (table, starts, lengths) if at_once and num_decodes and has_chunks else None
        self._decodes = (table[:num_decodes], lengths[:num_decodes], out[:num_decodes]) if num_decodes else None
        self._chunks = (table[num_decodes:], starts[num_decodes:], lengths[num_decodes:], out) if has_chunks else None
        self._scale = config.attention_scale or config.head_size**-0.5
        self._softcap = config.attention_softcap

    def __call__(self, q: Tensor, cache: LayerCache, window: int) -> Tensor:
        """q: [R, Hq, D]; cache and `window` are those of one layer -> [R, Hq * D]."""
        k_cache, v_cache, k_scale, v_scale = cache
        scale, softcap = self._scale, self._softcap
        if self._mixed is not None:
            num_decodes, out = self._num_decodes, self._out
            ops.mixed_attention(
                q, k_cache, v_cache, *self._mixed, out, num_decodes, scale, window, softcap, k_scale, v_scale
            )
            return self._rows
        if self._decodes is not None:
            decode_q = q if self._chunks is None else q[: self._num_decodes]
            ops.decode_attention(decode_q, k_cache, v_cache, *self._decodes, scale, window, softcap, k_scale, v_scale)
        if self._chunks is not None:
            ops.prefill_attention(q, k_cache, v_cache, *self._chunks, scale, window, softcap, k_scale, v_scale)
        return self._rows
