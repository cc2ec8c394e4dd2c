"""The decoder of every family: a stack of attention and feed-forward, each behind an RMSNorm and a residual.

One layer of T tokens, as ops:

    x [T, H] --linear qkv--> q, k, v --rope_write_kv--> KV cache
             q, KV cache --decode_attention (rows 0 .. num_decodes) / prefill_attention (the rest)--> [T, Hq * D]
             --linear o--> (rms_norm) --add_rms_norm--> feed-forward --> (rms_norm) --add_rms_norm--> next layer

On a GPU, `mixed_attention` stands for the two in a step that has both decodes and chunks.

`add_rms_norm` adds to the residual and norms the sum for what follows, so the second one of a layer already belongs to
the next layer's attention, or is the final norm. Those in brackets are there in families with output norms.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from cudaprefill import ops
from cudaprefill.engine.batch import Batch
from cudaprefill.engine.kv_cache import KVCache
from cudaprefill.models.block_matrix import BlockMatrix
from cudaprefill.models.config import ModelConfig
from cudaprefill.models.feed_forward import FeedForward, feed_forward
from cudaprefill.models.linear import CpuLinear, Linear
from cudaprefill.models.rope import RopeConfig
from cudaprefill.models.step_attention import StepAttention
from cudaprefill.models.weights import DecoderWeights, LayerWeights


@dataclass(frozen=True, slots=True)
class _Layer:
    weights: LayerWeights
    cos_sin: Tensor  # its RoPE table
    window: int
    feed_forward: FeedForward
    norm_after: Tensor  # the next layer's first norm, or the final one


class Decoder:
    """A model on one device. Holds weights and no state of any request: that is in the KV cache and the batch.

    `load_model` gives float32 activations on a CPU whatever the weights are stored as; on a GPU both have one dtype.
    """

    def __init__(self, config: ModelConfig, weights: DecoderWeights, rope_tables: Mapping[RopeConfig, Tensor]) -> None:
        """`rope_tables` has a table for the RoPE of each layer, [positions, rotated dimensions] float32."""
        self.config = config
        self.weights = weights
        self.rope_tables = rope_tables
        self.device = weights.embedding.device
        self.activation_dtype = weights.final_norm.dtype
        # On a GPU decodes and chunks of a step are one op, which may be one launch. On a CPU they run in turn anyway,
        # and as two ops each has its own line in a profile.
        self.attends_at_once = self.device.type == "cuda"
        has_own_linear = self.device.type == "cpu" and self.activation_dtype == torch.float32
        self._linear: Linear = CpuLinear() if has_own_linear else Linear()
        norms_after = [layer.attention_norm for layer in weights.layers[1:]] + [weights.final_norm]
        self._layers = [
            _Layer(layer, rope_tables[of.rope], of.window, feed_forward(config, of, layer), norm_after)
            for of, layer, norm_after in zip(config.layers, weights.layers, norms_after, strict=True)
        ]
        self._embedding_scale = config.embedding_scale
        if isinstance(weights.embedding, Tensor):  # the scale is rounded as the rows that it multiplies
            self._embedding_scale = torch.tensor(config.embedding_scale).to(weights.embedding.dtype).item()

    @property
    def weight_format(self) -> str:
        """What the weights of the layers are stored as: a dtype, or formats of blocks as GGUF calls them."""
        down = self.weights.layers[0].down
        return down.format_name if isinstance(down, BlockMatrix) else str(down.dtype).removeprefix("torch.")

    @property
    def linear_math(self) -> str:
        """int8 or int16 where activations are rounded for products with weights, else their dtype."""
        down = self.weights.layers[0].down
        bits = down.activation_bits if isinstance(down, BlockMatrix) else 32
        return f"int{bits}" if bits < 32 else str(self.activation_dtype).removeprefix("torch.")

    def _embed(self, batch: Batch) -> Tensor:
        token_ids, embedded = batch.token_ids, batch.embedded
        if embedded is not None:
            token_ids = token_ids.clamp(min=0)  # those of virtual tokens are below
            rows = self._rows(token_ids)
            rows[embedded.rows] = embedded.values
            return rows
        return self._rows(token_ids)

    def _rows(self, token_ids: Tensor) -> Tensor:
        embedding = self.weights.embedding
        if isinstance(embedding, BlockMatrix):
            rows = embedding.rows(token_ids)
        else:
            rows = functional.embedding(token_ids, embedding).to(self.activation_dtype)
        return rows if self._embedding_scale == 1 else rows.mul_(self._embedding_scale)

    def forward(self, batch: Batch, kv_cache: KVCache, *, sampled_only: bool = False) -> Tensor:
        """Hidden states after the final norm, [T, H] of the activation dtype; writes K and V of all T tokens.

        sampled_only: [R, H], of the batch's `logits_rows` alone. The last layer then computes these rows and no others
        once their K and V are written: nobody asks for what it makes of the rest.

        Needs at least one token, position ids within the RoPE tables, and to be called under torch.inference_mode().
        """
        config, linear, eps = self.config, self._linear_of(batch), self.config.rms_norm_eps
        heads = (config.num_q_heads, config.num_kv_heads, config.num_kv_heads)
        qkv_shape = (batch.num_tokens, sum(heads), config.head_size)
        position_ids, slot_mapping = batch.position_ids, batch.slot_mapping
        last = self._layers[-1] if sampled_only and batch.num_sampled < batch.num_tokens else None

        residual = self._embed(batch)
        attention = self._attention(batch, residual)
        x: Tensor = ops.rms_norm(residual, self.weights.layers[0].attention_norm, eps)
        for layer, cache in zip(self._layers, kv_cache.layers, strict=True):
            weights = layer.weights
            q, k, v = linear(x, weights.qkv, weights.qkv_bias).view(qkv_shape).split_with_sizes(heads, 1)
            ops.rope_write_kv(
                q,
                k,
                v,
                layer.cos_sin,
                position_ids,
                cache.k,
                cache.v,
                slot_mapping,
                weights.q_norm,
                weights.k_norm,
                eps,
                cache.k_scale,
                cache.v_scale,
            )
            if layer is last:
                q, residual = q.index_select(0, batch.logits_rows), residual.index_select(0, batch.logits_rows)
                if batch.num_sampled == 0:
                    return residual
                linear = self._linear_of(batch, sampled_only=True)
                attention = self._attention(batch, residual, sampled_only=True)
            x = linear(attention(q, cache, layer.window), weights.o, weights.o_bias)
            if weights.attention_output_norm is not None:
                x = ops.rms_norm(x, weights.attention_output_norm, eps)
            x = ops.add_rms_norm(x, residual, weights.feed_forward_norm, eps)
            x = layer.feed_forward(x, linear)
            if weights.feed_forward_output_norm is not None:
                x = ops.rms_norm(x, weights.feed_forward_output_norm, eps)
            x = ops.add_rms_norm(x, residual, layer.norm_after, eps)
        return x

    def _linear_of(self, batch: Batch, sampled_only: bool = False) -> Linear:
        """The linear layers for rows of a batch, with what their adapters add."""
        if batch.lora is None:
            return self._linear
        return batch.lora.linear_with(self._linear, self.weights.layers, sampled_only)

    def _attention(self, batch: Batch, rows: Tensor, sampled_only: bool = False) -> StepAttention:
        """The attention of `rows` [R, H] of a batch."""
        out = rows.new_empty((rows.shape[0], self.config.num_q_heads, self.config.head_size))
        return StepAttention(self.config, batch, out, at_once=self.attends_at_once, sampled_only=sampled_only)

    def logits(self, hidden: Tensor) -> Tensor:
        """Of each row of `hidden` [R, H]: [R, V] float32."""
        logits = self._linear(hidden, self.weights.lm_head, None).float()
        softcap = self.config.logits_softcap
        return logits if softcap == 0 else logits.div_(softcap).tanh_().mul_(softcap)
