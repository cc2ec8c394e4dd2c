"""Qwen2 (biases of q, k and v), Qwen3 (norms of the heads of q and k) and Qwen3-MoE (experts)."""

from __future__ import annotations

from cudaprefill.models.config import ExpertsConfig, LayerConfig, ModelConfig
from cudaprefill.models.errors import UnsupportedModelError
from cudaprefill.models.families.family import ROPE_TYPES, Family, model_config, read_head_size, read_windows
from cudaprefill.models.fields import Fields
from cudaprefill.models.hf_rope import read_rope
from cudaprefill.sampling_params import show


def _parse_qwen2(fields: Fields) -> ModelConfig:
    head_size = read_head_size(fields)
    return model_config(fields, "qwen2", head_size, _layers(fields, head_size), qkv_bias=True)


def _parse_qwen3(fields: Fields) -> ModelConfig:
    head_size, biased = read_head_size(fields), fields.flag("attention_bias")
    return model_config(
        fields, "qwen3", head_size, _layers(fields, head_size), qkv_bias=biased, o_bias=biased, qk_norm=True
    )


def _layers(fields: Fields, head_size: int) -> tuple[LayerConfig, ...]:
    """The first max_window_layers see all keys."""
    rope = read_rope(fields, head_size, ROPE_TYPES)
    window = fields.optional_integer("sliding_window") if fields.flag("use_sliding_window") else None
    first_windowed = fields.integer("max_window_layers", minimum=0)
    windows = read_windows(fields, rope, window, lambda number: number >= first_windowed)
    return tuple(LayerConfig(rope=rope, window=of) for of in windows)


def _parse_qwen3_moe(fields: Fields) -> ModelConfig:
    """Every decoder_sparse_step-th layer has experts, but not those of mlp_only_layers."""
    head_size, biased = read_head_size(fields), fields.flag("attention_bias")
    rope = read_rope(fields, head_size, ROPE_TYPES)
    window = fields.optional_integer("sliding_window") if fields.flag("use_sliding_window") else None
    windows = read_windows(fields, rope, window, lambda number: True)
    experts = ExpertsConfig(
        num_experts=fields.num_experts("num_experts", fields.num_experts("num_local_experts", 128)),
        num_chosen=fields.integer("num_experts_per_tok"),
        intermediate_size=fields.integer("moe_intermediate_size"),
        renormalise=fields.flag("norm_topk_prob"),
    )
    dense, step = fields.get("mlp_only_layers", []), fields.integer("decoder_sparse_step")
    if not isinstance(dense, list):
        raise UnsupportedModelError(f"config.json: mlp_only_layers must be a list of layer numbers, got {show(dense)}")
    layers = tuple(
        LayerConfig(rope=rope, window=of, experts=None if number in dense or (number + 1) % step else experts)
        for number, of in enumerate(windows)
    )
    return model_config(fields, "qwen3_moe", head_size, layers, qkv_bias=biased, o_bias=biased, qk_norm=True)


_DEFAULTS = {"sliding_window": 4096, "max_window_layers": 28}
QWEN2 = Family(
    model_type="qwen2",
    architecture="Qwen2ForCausalLM",
    parse=_parse_qwen2,
    defaults=_DEFAULTS,
    neutral={"mlp_bias": (False,)},
)
QWEN3 = Family(
    model_type="qwen3",
    architecture="Qwen3ForCausalLM",
    parse=_parse_qwen3,
    defaults={**_DEFAULTS, "head_dim": 128},
    neutral={"mlp_bias": (False,)},
)
QWEN3_MOE = Family(
    model_type="qwen3_moe",
    architecture="Qwen3MoeForCausalLM",
    parse=_parse_qwen3_moe,
    defaults={
        "sliding_window": 4096,
        "num_key_value_heads": 4,
        "num_experts_per_tok": 8,
        "moe_intermediate_size": 768,
        "decoder_sparse_step": 1,
        "intermediate_size": 6144,
    },
    read=frozenset({"num_experts", "num_local_experts"}),
    neutral={"mlp_bias": (False,), "shared_expert_intermediate_size": (0,)},
)
