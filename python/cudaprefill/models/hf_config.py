"""ModelConfig from the config.json and generation_config.json of a Hugging Face folder.

A missing key means what it means to transformers for that family. Keys that would change the computation in a way that
is not implemented must be absent, null or neutral; keys that transformers does not read for a family are ignored.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from cudaprefill.models.config import FAMILIES, ModelConfig
from cudaprefill.models.errors import UnsupportedModelError, WeightsError
from cudaprefill.models.fields import Fields
from cudaprefill.models.rope import RopeConfig, yarn_attention_factor

_ARCHITECTURES = {
    "LlamaForCausalLM": "llama",
    "MistralForCausalLM": "mistral",
    "Qwen2ForCausalLM": "qwen2",
    "Qwen3ForCausalLM": "qwen3",
}

# What else than null a key may say for the model to be one that is computed here.
_NEUTRAL: dict[str, tuple[Any, ...]] = {
    "hidden_act": ("silu",),
    "partial_rotary_factor": (1.0,),
    "rope_interleaved": (False,),
    "quantization_config": (),
    "compression_config": (),
    "num_experts": (0,),
    "num_local_experts": (0,),
    "n_routed_experts": (0,),
    "kv_lora_rank": (),
    "attn_logit_softcapping": (0.0,),
    "final_logit_softcapping": (0.0,),
    "query_pre_attn_scalar": (),
    "attention_multiplier": (1.0,),
    "embedding_multiplier": (1.0,),
    "residual_multiplier": (1.0,),
    "logits_scaling": (1.0,),
    "logit_scale": (1.0,),
    "attention_chunk_size": (0,),
    "dual_chunk_attention_config": (),
    "no_rope_layers": ([],),
    "no_rope_layer_interval": (0,),
    "use_qk_norm": (False,),
    "qk_layernorm": (False,),
    "is_causal": (True,),
    "is_encoder_decoder": (False,),
    "add_cross_attention": (False,),
    "text_config": (),
    "vision_config": (),
    "audio_config": (),
}
_NEUTRAL_IN_FAMILY: dict[str, dict[str, tuple[Any, ...]]] = {
    "llama": {"sliding_window": ()},
    "mistral": {"attention_bias": (False,), "mlp_bias": (False,)},
    "qwen2": {"mlp_bias": (False,)},
    "qwen3": {"mlp_bias": (False,)},
}

_ROPE_KEYS: dict[str, set[str]] = {
    "default": set(),
    "linear": {"factor"},
    "llama3": {"factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"},
    "yarn": {
        "factor",
        "original_max_position_embeddings",
        "attention_factor",
        "beta_fast",
        "beta_slow",
        "mscale",
        "mscale_all_dim",
        "truncate",
    },
}


def read_hf_config(folder: Path) -> ModelConfig:
    """The configuration of the model in `folder`. Raises WeightsError for files that are not there or not JSON."""
    generation = folder / "generation_config.json"
    return parse_hf_config(read_json(folder / "config.json"), read_json(generation) if generation.exists() else {})


def parse_hf_config(config: dict[str, Any], generation: dict[str, Any] | None = None) -> ModelConfig:
    """`config` and `generation` are the contents of config.json and generation_config.json; the latter's ids win.

    Raises UnsupportedModelError with the key and its value for whatever this engine does not compute.
    """
    fields = Fields(config, "config.json")
    family = _family(fields)
    for key, allowed in {**_NEUTRAL, **_NEUTRAL_IN_FAMILY[family]}.items():
        fields.only(key, *allowed)
    rope = _rope(fields)
    max_model_len = fields.integer("max_position_embeddings")
    if rope.rope_type == "yarn":  # some models state the length before the stretch, others the one after
        max_model_len = max(max_model_len, int(rope.factor * rope.original_max_position))
    num_layers = fields.integer("num_hidden_layers")
    num_q_heads = fields.integer("num_attention_heads")
    attention_bias = family in ("llama", "qwen3") and fields.flag("attention_bias")
    ids = Fields({**config, **{key: value for key, value in (generation or {}).items() if value is not None}}, "config")
    return ModelConfig(
        family=family,
        num_layers=num_layers,
        hidden_size=fields.integer("hidden_size"),
        intermediate_size=fields.integer("intermediate_size"),
        num_q_heads=num_q_heads,
        num_kv_heads=fields.integer("num_key_value_heads", num_q_heads),
        head_size=_head_size(fields, family, num_q_heads),
        vocab_size=fields.integer("vocab_size"),
        max_model_len=max_model_len,
        rms_norm_eps=fields.number("rms_norm_eps"),
        rope=rope,
        window=_window(fields, family, num_layers, max_model_len),
        qkv_bias=attention_bias or family == "qwen2",
        o_bias=attention_bias,
        mlp_bias=fields.flag("mlp_bias"),
        qk_norm=family == "qwen3",
        tied_embeddings=fields.flag("tie_word_embeddings"),
        bos_token_id=None if ids.get("bos_token_id") is None else ids.integer("bos_token_id", minimum=0),
        eos_token_ids=_eos_token_ids(ids),
    )


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object. Raises WeightsError naming the file."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise WeightsError(f"{path} does not exist") from None
    except ValueError as error:
        raise WeightsError(f"{path} is not valid JSON: {error}") from None
    if not isinstance(content, dict):
        raise WeightsError(f"{path} must hold a JSON object, got {type(content).__name__}")
    return content


def _family(fields: Fields) -> str:
    model_type, architectures = fields.get("model_type"), fields.get("architectures", [])
    fields.only("model_type", *FAMILIES)
    if len(architectures) > 1 or any(name not in _ARCHITECTURES for name in architectures):
        raise fields.unsupported("architectures", architectures, *_ARCHITECTURES)
    family = _ARCHITECTURES[architectures[0]] if architectures else model_type
    if family is None:
        raise UnsupportedModelError("config.json: architectures and model_type are missing")
    if model_type not in (None, family):
        raise UnsupportedModelError(f"config.json: model_type {model_type!r} contradicts architectures {architectures}")
    code = fields.get("auto_map", {}).get("AutoModelForCausalLM")
    if code is not None:
        raise UnsupportedModelError(f"config.json: auto_map asks for the model's own code {code!r}, which is never run")
    return str(family)


def _head_size(fields: Fields, family: str, num_q_heads: int) -> int:
    hidden_size = fields.integer("hidden_size")
    if fields.get("head_dim") is None and family != "qwen3" and hidden_size % num_q_heads:
        raise UnsupportedModelError(
            f"config.json: hidden_size {hidden_size} is not a multiple of num_attention_heads {num_q_heads}, "
            "and head_dim is missing"
        )
    return fields.integer("head_dim", 128 if family == "qwen3" else hidden_size // num_q_heads)


def _window(fields: Fields, family: str, num_layers: int, max_model_len: int) -> int:
    """The one window of all layers, 0 where no key is ever out of sight. Windows in some layers only are refused."""
    window = None
    if family == "mistral":
        window = fields.values.get("sliding_window", 4096)  # null means none, absent means 4096
    elif family in ("qwen2", "qwen3") and fields.flag("use_sliding_window"):
        window = fields.values.get("sliding_window", 4096)

    layer_types = fields.get("layer_types")
    if layer_types is not None:
        if len(layer_types) != num_layers or set(layer_types) - {"full_attention", "sliding_attention"}:
            raise fields.unsupported(
                "layer_types", layer_types, f"'full_attention' or 'sliding_attention' for each of {num_layers} layers"
            )
        windowed = layer_types.count("sliding_attention")
        if windowed and window is None:
            raise UnsupportedModelError(f"config.json: layer_types has {windowed} windowed layers but no window is set")
    elif window is None:
        windowed = 0
    elif family == "mistral":
        windowed = num_layers
    else:
        windowed = max(0, num_layers - fields.integer("max_window_layers", 28, minimum=0))

    if window is None or (windowed == 0 and family != "mistral"):
        return 0
    window = fields.integer("sliding_window", 4096)
    if window >= max_model_len:
        return 0
    if windowed != num_layers:
        raise UnsupportedModelError(
            f"config.json: a sliding window of {window} in {windowed} of {num_layers} layers is not supported, "
            "only in all or in none"
        )
    return window


def _rope(fields: Fields) -> RopeConfig:
    """Reads `rope_parameters` (transformers 5) as well as `rope_scaling` with `rope_theta` beside it (before)."""
    key = "rope_scaling" if fields.get("rope_scaling") else "rope_parameters"
    if not isinstance(fields.get(key, {}), dict):
        raise fields.unsupported(key, fields.get(key))
    rope = Fields(fields.get(key, {}), f"config.json: {key}")
    rope_type = rope.get("rope_type", rope.get("type", "default"))
    if rope_type not in _ROPE_KEYS:
        raise rope.unsupported("rope_type", rope_type, *_ROPE_KEYS)
    for name in set(rope.values) - _ROPE_KEYS[rope_type] - {"rope_type", "type", "rope_theta", "partial_rotary_factor"}:
        if rope.get(name) is not None:
            raise UnsupportedModelError(f"{rope.where}: {name} = {rope.get(name)!r} is unknown for type {rope_type!r}")
    rope.only("partial_rotary_factor", 1.0)

    theta = rope.number("rope_theta", fields.number("rope_theta", 10000.0))
    max_position = fields.integer("max_position_embeddings")
    original = "original_max_position_embeddings"
    original_max_position = fields.integer(original, rope.integer(original, max_position))
    if rope_type == "linear":
        return RopeConfig(rope_type=rope_type, theta=theta, factor=rope.number("factor"))
    if rope_type == "llama3":
        low, high = rope.number("low_freq_factor"), rope.number("high_freq_factor")
        if high <= low:
            raise UnsupportedModelError(f"{rope.where}: high_freq_factor must be above {low}, got {high}")
        return RopeConfig(
            rope_type=rope_type,
            theta=theta,
            factor=rope.number("factor"),
            original_max_position=original_max_position,
            low_freq_factor=low,
            high_freq_factor=high,
        )
    if rope_type == "yarn":
        factor = rope.number("factor", max_position / original_max_position)
        inferred = yarn_attention_factor(factor, rope.get("mscale"), rope.get("mscale_all_dim"))
        return RopeConfig(
            rope_type=rope_type,
            theta=theta,
            factor=factor,
            original_max_position=original_max_position,
            beta_fast=rope.number("beta_fast", 32.0),
            beta_slow=rope.number("beta_slow", 1.0),
            attention_factor=rope.number("attention_factor", inferred),
            truncate=rope.flag("truncate", True),
        )
    return RopeConfig(rope_type=rope_type, theta=theta)


def _eos_token_ids(fields: Fields) -> tuple[int, ...]:
    ids = fields.get("eos_token_id", [])
    ids = ids if isinstance(ids, list) else [ids]
    return tuple(Fields({"eos_token_id": token}, fields.where).integer("eos_token_id", minimum=0) for token in ids)
