"""Prefix tuning: keys and values of every layer in front of the prompt. They go straight into the KV cache.

PEFT saves what its encoder gives, projected or not: the keys as attention reads them, so RoPE does not rotate them, and
the first token of the text has the position behind them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path

from torch import Tensor

from cudaprefill.adapters.adapter import Adapter, AdapterTarget
from cudaprefill.adapters.config import AdapterFields
from cudaprefill.adapters.files import content_hash, in_dtype
from cudaprefill.adapters.prompt import EMBEDDINGS, num_virtual_tokens, the_tensor
from cudaprefill.adapters.virtual_tokens import VirtualTokens

_KNOWN = {
    "num_virtual_tokens",
    "token_dim",
    "num_transformer_submodules",
    "num_attention_heads",
    "num_layers",
    "encoder_hidden_size",
    "prefix_projection",
    "init_weights",
}


def load_prefix_adapter(
    name: str, folder: Path, fields: AdapterFields, tensors: Mapping[str, Tensor], target: AdapterTarget
) -> Adapter:
    """Raises AdapterError saying what is wrong."""
    model = target.model
    fields.know_only(_KNOWN)
    fields.only("num_transformer_submodules", 1)
    fields.fits("num_layers", model.num_layers, "the number of layers")
    fields.fits("num_attention_heads", model.num_kv_heads, "the number of KV heads")
    fields.fits("token_dim", model.num_kv_heads * model.head_size, "the size of all KV heads")
    of_token = (model.num_layers, 2, model.num_kv_heads, model.head_size)
    num_tokens = num_virtual_tokens(fields, target)
    # What a narrower cache stores of them is left to the op that writes them, as with all others.
    narrower = target.kv_dtype.itemsize < target.activation_dtype.itemsize
    dtype = target.activation_dtype if narrower else target.kv_dtype
    stored = in_dtype(EMBEDDINGS, the_tensor(tensors, (num_tokens, math.prod(of_token))), dtype)
    keys_values = stored.view(num_tokens, *of_token).permute(1, 2, 0, 3, 4)  # [L, 2, G, Hkv, D]
    return Adapter(
        name,
        folder,
        "prefix tuning",
        content_hash({"peft_type": fields.peft_type}, tensors),
        VirtualTokens(keys_values=keys_values.to(target.device).contiguous()),
    )
