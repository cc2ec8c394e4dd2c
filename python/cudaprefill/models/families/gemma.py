"""Gemma 2 and Gemma 3 (the text model): windows in most layers, norms before and behind each half of a layer.

Norms multiply by 1 + weight, the embedding by sqrt(hidden_size), and the gate is a GELU in its tanh form. Gemma 2 caps
scores and logits; Gemma 3 norms the heads of q and k, and its windowed layers have a rotary embedding of their own.
"""

from __future__ import annotations

from typing import Any

from cudaprefill.models.checkpoint_names import CheckpointNames
from cudaprefill.models.config import LayerConfig, ModelConfig
from cudaprefill.models.families.family import ROPE_TYPES, Family, model_config, read_head_size, read_windows
from cudaprefill.models.fields import Fields
from cudaprefill.models.hf_rope import parse_rope, read_rope

NAMES = CheckpointNames(
    attention_output_norm="post_attention_layernorm",
    feed_forward_norm="pre_feedforward_layernorm",
    feed_forward_output_norm="post_feedforward_layernorm",
)


def _parse_gemma2(fields: Fields) -> ModelConfig:
    head_size = read_head_size(fields)
    rope = read_rope(fields, head_size, ROPE_TYPES)
    windows = read_windows(fields, rope, fields.optional_integer("sliding_window"), lambda number: number % 2 == 0)
    layers = tuple(LayerConfig(rope=rope, window=window) for window in windows)
    return model_config(
        fields,
        "gemma2",
        head_size,
        layers,
        attention_softcap=_softcap(fields, "attn_logit_softcapping"),
        **_traits(fields),
    )


def _parse_gemma3(fields: Fields) -> ModelConfig:
    """The one stretched, if any, is the embedding of the layers that see all keys: `rope_scaling` is of these alone."""
    head_size = read_head_size(fields)
    key = "rope_parameters" if fields.get("rope_parameters") else "rope_scaling"
    values, scaling = fields.mapping("rope_parameters"), fields.mapping("rope_scaling")
    if set(values) - {"full_attention", "sliding_attention"}:
        raise fields.unsupported(key, values, "one object each for 'full_attention' and 'sliding_attention'")
    kinds = Fields(values, f"{fields.where}: {key}")
    scaled = {**kinds.mapping("full_attention"), **scaling}
    of_all = parse_rope(fields, key, scaled, head_size, ROPE_TYPES, theta=1_000_000.0)
    local_theta = fields.number("rope_local_base_freq", 10_000.0)
    local = Fields({**fields.values, "rope_theta": local_theta}, fields.where)
    of_near = parse_rope(local, key, kinds.mapping("sliding_attention"), head_size, ROPE_TYPES)

    pattern = fields.integer("sliding_window_pattern", fields.integer("_sliding_window_pattern", 6))

    def windowed(number: int) -> bool:
        return (number + 1) % pattern != 0

    windows = read_windows(fields, of_all, fields.optional_integer("sliding_window"), windowed)
    types = fields.get("layer_types") or [
        "sliding_attention" if windowed(number) else "full_attention" for number in range(len(windows))
    ]
    ropes = {"full_attention": of_all, "sliding_attention": of_near}
    layers = tuple(LayerConfig(rope=ropes[of], window=window) for of, window in zip(types, windows, strict=True))
    return model_config(fields, "gemma3", head_size, layers, qk_norm=True, **_traits(fields))


def _traits(fields: Fields) -> dict[str, Any]:
    biased = fields.flag("attention_bias")
    return {
        "activation": "gelu_tanh",
        "attention_scale": fields.number("query_pre_attn_scalar") ** -0.5,
        "logits_softcap": _softcap(fields, "final_logit_softcapping"),
        "embedding_scale": fields.integer("hidden_size") ** 0.5,
        "norm_offset": 1.0,
        "output_norms": True,
        "qkv_bias": biased,
        "o_bias": biased,
        "names": NAMES,
    }


def _softcap(fields: Fields, key: str) -> float:
    return 0.0 if fields.get(key) is None else fields.number(key)


_DEFAULTS = {
    "vocab_size": 256_000,
    "hidden_size": 2304,
    "intermediate_size": 9216,
    "num_hidden_layers": 26,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "max_position_embeddings": 8192,
    "rms_norm_eps": 1e-6,
    "query_pre_attn_scalar": 256,
    "sliding_window": 4096,
    "tie_word_embeddings": True,
    "eos_token_id": 1,
    "bos_token_id": 2,
}
_NEUTRAL = {
    "hidden_activation": ("gelu_pytorch_tanh",),
    "use_bidirectional_attention": (False,),
}
GEMMA2 = Family(
    model_type="gemma2",
    architecture="Gemma2ForCausalLM",
    parse=_parse_gemma2,
    defaults={**_DEFAULTS, "attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0},
    read=frozenset({"hidden_act", "attn_logit_softcapping", "final_logit_softcapping", "query_pre_attn_scalar"}),
    neutral=_NEUTRAL,
)
GEMMA3 = Family(
    model_type="gemma3_text",
    architecture="Gemma3ForCausalLM",
    parse=_parse_gemma3,
    defaults={**_DEFAULTS, "vocab_size": 262_208, "max_position_embeddings": 131_072},
    read=frozenset({"hidden_act", "final_logit_softcapping", "query_pre_attn_scalar"}),
    neutral={**_NEUTRAL, "attn_logit_softcapping": ()},
)
