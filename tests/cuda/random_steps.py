"""Requests that grow, fork and pause at random, laid out as the arrays of steps; and a small model to run them."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from cudaprefill.engine.schedule import BatchArrays
from cudaprefill.models.config import LayerConfig, ModelConfig
from cudaprefill.models.decoder import Decoder
from cudaprefill.models.rope import RopeConfig, cos_sin_table, inverse_frequencies
from cudaprefill.models.weights import DecoderWeights, LayerWeights
from tests.ops.attention_reference import POISONED_BLOCK

BLOCK_SIZE = 16
MAX_MODEL_LEN = 256
VOCAB_SIZE = 101
ROPE = RopeConfig(rope_type="default", theta=1e4)
POISON = VOCAB_SIZE  # a token whose embedding is NaN


def small_decoder(dtype: torch.dtype = torch.float32, device: str = "cpu") -> Decoder:
    """Two layers with random weights, of which every token but `POISON` gives numbers."""
    config = ModelConfig(
        family="llama",
        layers=(LayerConfig(rope=ROPE),) * 2,
        hidden_size=64,
        intermediate_size=96,
        num_q_heads=4,
        num_kv_heads=2,
        head_size=64,
        vocab_size=VOCAB_SIZE + 1,
        max_model_len=MAX_MODEL_LEN,
        rms_norm_eps=1e-5,
    )
    generator = torch.Generator().manual_seed(0)

    def matrix(outputs: int, inputs: int, scale: float = 1.5) -> Tensor:
        return (torch.randn(outputs, inputs, generator=generator) * scale / inputs**0.5).to(device, dtype)

    def norm() -> Tensor:
        return torch.ones(config.hidden_size, device=device, dtype=dtype)

    def layer() -> LayerWeights:
        return LayerWeights(
            attention_norm=norm(),
            qkv=matrix(8 * config.head_size, config.hidden_size),
            qkv_bias=None,
            q_norm=None,
            k_norm=None,
            o=matrix(config.hidden_size, 4 * config.head_size),
            o_bias=None,
            attention_output_norm=None,
            feed_forward_norm=norm(),
            gate_up=matrix(2 * config.intermediate_size, config.hidden_size),
            gate_up_bias=None,
            down=matrix(config.hidden_size, config.intermediate_size),
            down_bias=None,
            feed_forward_output_norm=None,
        )

    embedding = matrix(config.vocab_size, config.hidden_size, scale=4.0)
    embedding[POISON] = torch.nan
    lm_head = matrix(VOCAB_SIZE, config.hidden_size)
    weights = DecoderWeights(embedding, (layer(), layer()), norm(), lm_head)
    table = cos_sin_table(inverse_frequencies(ROPE, config.head_size), MAX_MODEL_LEN)
    return Decoder(config, weights, {ROPE: table.to(device)})


@dataclass(eq=False)
class _Request:
    token_ids: list[int]
    blocks: list[int]
    num_computed: int = 0


class RandomSteps:
    """Blocks are handed out in a shuffled order and never taken back."""

    def __init__(self, seed: int, num_blocks: int) -> None:
        self._random = random.Random(seed)
        self._blocks = self._random.sample(range(num_blocks), num_blocks)
        self._requests: list[_Request] = []
        self._in_step: list[_Request] = []

    def step(self, num_decodes: int, chunk_lengths: Sequence[int] = (), num_forks: int = 0) -> BatchArrays:
        """Some of the requests decode; `num_forks` of these are new copies of others, with a block of their own.

        Every chunk is the whole prompt of a new request.
        """
        able = [request for request in self._requests if len(request.token_ids) < MAX_MODEL_LEN]
        chosen = self._random.sample(able, num_decodes - num_forks)
        copies = []
        for origin in self._random.sample(able, num_forks):
            fork = _Request(list(origin.token_ids), list(origin.blocks), origin.num_computed)
            if origin.num_computed % BLOCK_SIZE:
                fork.blocks[-1] = self._blocks.pop()
                copies.append((origin.blocks[-1], fork.blocks[-1]))
            chosen.append(fork)
        self._random.shuffle(chosen)
        prompts = [_Request(self._random.choices(range(VOCAB_SIZE), k=length), []) for length in chunk_lengths]
        self._requests += [request for request in [*chosen, *prompts] if request not in self._requests]
        self._in_step = chosen + prompts
        return self._lay_out(copies, num_decodes)

    def append(self, token_ids: Sequence[int]) -> None:
        """The tokens that the rows of the latest step gave."""
        for request, token_id in zip(self._in_step, token_ids, strict=True):
            request.num_computed = len(request.token_ids)
            request.token_ids.append(token_id)

    def _lay_out(self, copies: list[tuple[int, int]], num_decodes: int) -> BatchArrays:
        tokens, positions, slots, starts = [], [], [], [0]
        for request in self._in_step:
            while len(request.blocks) * BLOCK_SIZE < len(request.token_ids):
                request.blocks.append(self._blocks.pop())
            for position in range(request.num_computed, len(request.token_ids)):
                tokens.append(request.token_ids[position])
                positions.append(position)
                slots.append(request.blocks[position // BLOCK_SIZE] * BLOCK_SIZE + position % BLOCK_SIZE)
            starts.append(len(tokens))
        table = np.full((len(self._in_step), max(len(r.blocks) for r in self._in_step)), POISONED_BLOCK, np.int32)
        for row, request in zip(table, self._in_step, strict=True):
            row[: len(request.blocks)] = request.blocks
        return BatchArrays(
            token_ids=np.array(tokens, dtype=np.int64),
            position_ids=np.array(positions, dtype=np.int64),
            slot_mapping=np.array(slots, dtype=np.int64),
            cu_seqlens_q=np.array(starts, dtype=np.int32),
            context_lens=np.array([len(request.token_ids) for request in self._in_step], dtype=np.int32),
            block_table=table,
            logits_rows=np.array(starts[1:], dtype=np.int64) - 1,
            logits_requests=np.arange(len(self._in_step)),
            block_copies=np.array(copies, dtype=np.int64).reshape(-1, 2),
            num_decodes=num_decodes,
        )
