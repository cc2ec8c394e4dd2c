"""Writes GGUF files of tiny models, the way llama.cpp's converter lays them out."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from transformers import PreTrainedModel

_PARTS = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def interleave_halves(rows: np.ndarray, num_heads: int) -> np.ndarray:
    """[heads * D, ...] with the first and second rotated half of each head in turn: r0, r(D/2), r1, r(D/2 + 1), ..."""
    heads = np.split(rows, num_heads)
    pairs = [[head[i], head[len(head) // 2 + i]] for head in heads for i in range(len(head) // 2)]
    return np.stack([row for pair in pairs for row in pair])


def write_gguf(
    path: Path,
    model: PreTrainedModel,
    quantisation: gguf.GGMLQuantizationType | dict[str, gguf.GGMLQuantizationType] = gguf.GGMLQuantizationType.F32,
    rope_factors: np.ndarray | None = None,
    metadata: Callable[[gguf.GGUFWriter], Any] | None = None,
) -> None:
    """Matrices are quantised, vectors stay float32; `metadata` may add keys to the writer.

    quantisation: of all matrices, or by the name of a layer's part ("attn_v"), where "" is that of the others.
    """
    config = model.config
    family = {"mistral": "llama"}.get(config.model_type, config.model_type)
    writer = gguf.GGUFWriter(path, family)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_key_length(config.head_dim)
    writer.add_value_length(config.head_dim)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_token_list([f"token {i}" for i in range(config.vocab_size)])
    writer.add_token_scores([0.5] * config.vocab_size)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    if metadata is not None:
        metadata(writer)
    for name, values in model.state_dict().items():
        if name == "lm_head.weight" and config.tie_word_embeddings:
            continue
        array = values.to(torch.float32).numpy()
        if family == "llama" and ".q_proj." in name:
            array = interleave_halves(array, config.num_attention_heads)
        if family == "llama" and ".k_proj." in name:
            array = interleave_halves(array, config.num_key_value_heads)
        stem, kind = name.rsplit(".", 1)
        if stem.startswith("model.layers."):
            _, _, layer, part = stem.split(".", 3)
            name = f"blk.{layer}.{_PARTS[part]}.{kind}"
        else:
            name = f"{_PARTS[stem]}.{kind}"
        kept = gguf.GGMLQuantizationType.F32
        if array.ndim == 2:
            kinds = quantisation if isinstance(quantisation, dict) else {"": quantisation}
            kept = kinds.get(name.split(".")[-2], kinds[""])
        writer.add_tensor(name, gguf.quants.quantize(array, kept), raw_dtype=kept)
    if rope_factors is not None:
        writer.add_tensor("rope_freqs.weight", rope_factors.astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
