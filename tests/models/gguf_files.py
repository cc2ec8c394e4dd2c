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
    "mlp.gate": "ffn_gate_inp",
    "mlp.experts.gate_proj": "ffn_gate_exps",
    "mlp.experts.up_proj": "ffn_up_exps",
    "mlp.experts.down_proj": "ffn_down_exps",
    "self_attn.qkv_proj": "attn_qkv",
    "mlp.gate_up_proj": "ffn_up",
}
_GEMMA_PARTS = {
    "post_attention_layernorm": "post_attention_norm",
    "pre_feedforward_layernorm": "ffn_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
}
_ARCHITECTURES = {"mistral": "llama", "mixtral": "llama", "qwen3_moe": "qwen3moe", "gemma3_text": "gemma3"}


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
    family = _ARCHITECTURES.get(config.model_type, config.model_type)
    is_gemma = family.startswith("gemma")
    parts = {**_PARTS, **_GEMMA_PARTS} if is_gemma else _PARTS
    writer = gguf.GGUFWriter(path, family)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    head_size = getattr(config, "head_dim", config.hidden_size // config.num_attention_heads)
    writer.add_key_length(head_size)
    writer.add_value_length(head_size)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    rope = config.rope_parameters
    writer.add_rope_freq_base(rope.get("full_attention", rope)["rope_theta"])
    if family in ("gemma2", "gemma3"):
        writer.add_sliding_window(config.sliding_window)
        writer.add_final_logit_softcapping(config.final_logit_softcapping)
    if family == "gemma2":
        writer.add_attn_logit_softcapping(config.attn_logit_softcapping)
    if hasattr(config, "num_experts_per_tok"):
        writer.add_expert_count(config.num_local_experts)
        writer.add_expert_used_count(config.num_experts_per_tok)
        writer.add_expert_feed_forward_length(getattr(config, "moe_intermediate_size", config.intermediate_size))
    writer.add_token_list([f"token {i}" for i in range(config.vocab_size)])
    writer.add_token_scores([0.5] * config.vocab_size)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    if metadata is not None:
        metadata(writer)
    for name, values in _with_experts_apart(model.state_dict()).items():
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
            name = f"blk.{layer}.{parts[part]}.{kind}"
        else:
            name = f"{parts[stem]}.{kind}"
        if is_gemma and "norm" in name:
            array = array + np.float32(1)
        kept = gguf.GGMLQuantizationType.F32
        if array.ndim >= 2 and not name.endswith("ffn_gate_inp.weight"):
            kinds = quantisation if isinstance(quantisation, dict) else {"": quantisation}
            kept = kinds.get(name.split(".")[-2], kinds[""])
        writer.add_tensor(name, gguf.quants.quantize(array, kept), raw_dtype=kept)
    if rope_factors is not None:
        writer.add_tensor("rope_freqs.weight", rope_factors.astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _with_experts_apart(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Gate and up of all experts as two tensors, which transformers holds as one, and both with the usual suffix."""
    apart = {}
    for name, values in tensors.items():
        if name.endswith("experts.gate_up_proj"):
            gate, up = values.chunk(2, dim=1)
            apart[name.replace("gate_up_proj", "gate_proj.weight")] = gate
            apart[name.replace("gate_up_proj", "up_proj.weight")] = up
        else:
            apart[f"{name}.weight" if name.endswith("experts.down_proj") else name] = values
    return apart
