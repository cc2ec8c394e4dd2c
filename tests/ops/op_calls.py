"""One right call of each op."""

from __future__ import annotations

from typing import Any

import torch

from cudaprefill.ops import LoraPart, lora_parts, lora_tiles
from tests.ops.block_matrices import groups_of, random_blocks

T, B, HQ, HKV, D, N, S, M = 5, 2, 6, 2, 64, 8, 16, 3

# Three adapters of two parts each; the tables name their matrices by address, so these must live on.
_LORA_PARTS = [
    [LoraPart(torch.randn(rank, 48), lora_tiles(torch.randn(48, rank)), 0.5, first, 48) for first in (0, 48)]
    for rank in (4, 1, 9)
]
_LORA = lora_parts(_LORA_PARTS, torch.device("cpu"), 2)


def right_arguments(op: str) -> dict[str, Any]:
    """The arguments of a right call, by name: T tokens, B requests and the other sizes above."""
    q = torch.randn(T, HQ, D)
    k, v = torch.randn(2, T, HKV, D)
    caches = {"k_cache": torch.randn(N, HKV, S, D), "v_cache": torch.randn(N, HKV, S, D)}
    slot_mapping = torch.tensor([3, 40, -1, 7, 100])
    block_table = torch.tensor([[1, 2, 3], [4, 5, 6]], dtype=torch.int32)
    context_lens = torch.tensor([20, 35], dtype=torch.int32)
    attention = {"block_table": block_table, "context_lens": context_lens, "scale": 0.125, "window": 0, "softcap": 0.0}
    return {
        "write_kv": {"k": k, "v": v, **caches, "slot_mapping": slot_mapping},
        "rope_write_kv": {
            "q": q,
            "k": k,
            "v": v,
            "cos_sin": torch.randn(50, D),
            "position_ids": torch.arange(T),
            **caches,
            "slot_mapping": slot_mapping,
            "q_norm": torch.randn(D),
            "k_norm": torch.randn(D),
            "norm_eps": 1e-6,
        },
        "prefill_attention": {
            "q": q,
            **caches,
            "cu_seqlens_q": torch.tensor([0, 2, 5], dtype=torch.int32),
            "out": torch.zeros(T, HQ, D),
            **attention,
        },
        "mixed_attention": {
            "q": q,
            **caches,
            "cu_seqlens_q": torch.tensor([0, 1, 5], dtype=torch.int32),
            "out": torch.zeros(T, HQ, D),
            "num_decodes": 1,
            **attention,
        },
        "decode_attention": {"q": q[:B], **caches, "out": torch.zeros(B, HQ, D), **attention},
        "rms_norm": {"x": torch.randn(T, 48), "weight": torch.randn(48), "eps": 1e-5},
        "add_rms_norm": {
            "x": torch.randn(T, 48),
            "residual": torch.randn(T, 48),
            "weight": torch.randn(48),
            "eps": 1e-5,
        },
        "silu_and_mul": {"x": torch.randn(T, 96)},
        "gelu_tanh_and_mul": {"x": torch.randn(T, 96)},
        "expert_mlp": {
            "x": torch.randn(T, 48),
            "router_logits": torch.randn(T, 3),
            "gate_up": torch.randn(3 * 2 * 40, 48),
            "down": torch.randn(3 * 48, 40),
            "num_chosen": 2,
            "renormalise": True,
        },
        "expert_mlp_blocks": {
            "x": torch.randn(T, 64),
            "router_logits": torch.randn(T, 3),
            "gate_up": groups_of(random_blocks(3, 3 * 2 * 32, 64), 3),
            "gate_up_format": 3,
            "down": groups_of(random_blocks(8, 3 * 64, 32), 8),
            "down_format": 8,
            "inner_size": 32,
            "num_chosen": 2,
            "renormalise": True,
        },
        "copy_blocks": {**caches, "block_pairs": torch.tensor([[0, 7], [2, 1]])},
        "add_lora": {
            "out": torch.zeros(T, 96),
            "x": torch.randn(T, 48),
            "row_ids": torch.tensor([0, 4, 2], dtype=torch.int32),
            "row_starts": torch.tensor([0, 1, 1, 3], dtype=torch.int32),
            "parts": _LORA[0].clone(),
            "scales": _LORA[1].clone(),
        },
        "linear": {"x": torch.randn(T, 48), "weight": torch.randn(20, 48), "bias": torch.randn(20)},
        "group_blocks": {
            "blocks": random_blocks(3, 20, 64),
            "block_format": 3,
            "groups": torch.zeros(2, 640, dtype=torch.uint8),
        },
        "linear_blocks": {
            "x": torch.randn(T, 64),
            "groups": groups_of(random_blocks(3, 20, 64), 3),
            "block_format": 3,
            "num_outputs": 20,
            "bias": torch.randn(20),
            "activation_bits": 32,
        },
        "gated_linear": {
            "x": torch.randn(T, 48),
            "gate_up": torch.randn(20, 48),
            "activation": "silu",
            "bias": torch.randn(20),
        },
        "gated_linear_blocks": {
            "x": torch.randn(T, 64),
            "groups": groups_of(random_blocks(3, 20, 64), 3),
            "block_format": 3,
            "inner_size": 10,
            "activation": "gelu_tanh",
            "bias": torch.randn(20),
            "activation_bits": 32,
        },
        "dequantise_rows": {
            "groups": groups_of(random_blocks(3, 20, 64), 3),
            "block_format": 3,
            "num_rows": 20,
            "num_columns": 64,
            "row_ids": torch.tensor([19, 0, 5]),
        },
    }[op]


OPS = [
    "write_kv",
    "rope_write_kv",
    "prefill_attention",
    "decode_attention",
    "mixed_attention",
    "rms_norm",
    "add_rms_norm",
    "silu_and_mul",
    "gelu_tanh_and_mul",
    "expert_mlp",
    "expert_mlp_blocks",
    "copy_blocks",
    "add_lora",
    "linear",
    "group_blocks",
    "linear_blocks",
    "gated_linear",
    "gated_linear_blocks",
    "dequantise_rows",
]
