"""The tensors of one step, laid out for the kernels."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from torch import Tensor

    from cudaprefill.adapters.lora_batch import LoraBatch
    from cudaprefill.engine.schedule import BatchArrays


@dataclass(frozen=True)
class EmbeddedRows:
    """Rows of a batch whose embeddings are given, in the place of those of their token ids."""

    rows: Tensor  # [E] int64
    values: Tensor  # [E, H] of the activation dtype


@dataclass(frozen=True)
class GivenKV:
    """Keys and values that go into the KV cache as they are."""

    keys_values: Tensor  # [num_layers, 2, G, Hkv, D]
    slots: Tensor  # [G] int64


@dataclass(frozen=True)
class Batch:
    """T tokens of B requests: decodes first (one token each), then chunks.

    Filled by the batch builder, read by the decoder and the ops, passed explicitly to both.
    """

    token_ids: Tensor  # [T] int64; below zero: virtual, thus among `embedded`
    position_ids: Tensor  # [T] int64
    slot_mapping: Tensor  # [T] int64: block * block_size + offset
    cu_seqlens_q: Tensor  # [B + 1] int32: request b owns rows cu_seqlens_q[b] .. cu_seqlens_q[b + 1]
    context_lens: Tensor  # [B] int32: cached plus new tokens
    block_table: Tensor  # [B, M] int32: logical block -> physical block, valid to ceil(context_len / block_size)
    logits_rows: Tensor  # [R] int64: rows whose logits are sampled, of each decode and of the end of each last chunk
    logits_requests: Tensor  # [R] int64: the requests, from 0 to B - 1, that they belong to
    block_copies: Tensor  # [C, 2] int64: source and destination of each copy-on-write, done before the forward pass
    num_decodes: int
    embedded: EmbeddedRows | None = None
    given_kv: tuple[GivenKV, ...] = ()  # written before the forward pass
    lora: LoraBatch | None = None  # None: no row uses a LoRA adapter

    @property
    def num_tokens(self) -> int:
        return self.token_ids.shape[0]

    @property
    def num_sampled(self) -> int:
        return self.logits_rows.shape[0]

    @property
    def num_chunks(self) -> int:
        return self.context_lens.shape[0] - self.num_decodes

    @classmethod
    def from_arrays(cls, arrays: BatchArrays, device: torch.device) -> Batch:
        """On a CPU the tensors share the arrays' memory, which the next step overwrites.

        A GPU gets copies by way of pinned memory, which torch keeps until they are made: nothing is waited for.
        """

        def tensor(array: NDArray[Any]) -> Tensor:
            host = torch.from_numpy(array)
            return host if device.type == "cpu" else host.pin_memory().to(device, non_blocking=True)

        return cls(
            token_ids=tensor(arrays.token_ids),
            position_ids=tensor(arrays.position_ids),
            slot_mapping=tensor(arrays.slot_mapping),
            cu_seqlens_q=tensor(arrays.cu_seqlens_q),
            context_lens=tensor(arrays.context_lens),
            block_table=tensor(arrays.block_table),
            logits_rows=tensor(arrays.logits_rows),
            logits_requests=tensor(arrays.logits_requests),
            block_copies=tensor(arrays.block_copies),
            num_decodes=arrays.num_decodes,
        )
