"""Mixtral: Mistral with experts in every layer, whose names in the file are older than the others'."""

from __future__ import annotations

from dataclasses import replace

from cudaprefill.models.checkpoint_names import CheckpointNames
from cudaprefill.models.config import ExpertsConfig, ModelConfig
from cudaprefill.models.families.family import ROPE_TYPES, Family, model_config, read_head_size, same_layers
from cudaprefill.models.fields import Fields
from cudaprefill.models.hf_rope import read_rope

NAMES = CheckpointNames(
    router="block_sparse_moe.gate",
    expert_gate_up=("block_sparse_moe.experts.{}.w1", "block_sparse_moe.experts.{}.w3"),
    expert_down="block_sparse_moe.experts.{}.w2",
)


def _parse(fields: Fields) -> ModelConfig:
    head_size = read_head_size(fields)
    experts = ExpertsConfig(
        num_experts=fields.num_experts("num_local_experts", fields.num_experts("num_experts", 8)),
        num_chosen=fields.integer("num_experts_per_tok", 2),
        intermediate_size=fields.integer("intermediate_size"),
        renormalise=True,
    )
    rope = read_rope(fields, head_size, ROPE_TYPES, theta=1_000_000.0)
    layers = same_layers(fields, rope, fields.optional_integer("sliding_window"))
    return model_config(
        fields, "mixtral", head_size, tuple(replace(layer, experts=experts) for layer in layers), names=NAMES
    )


MIXTRAL = Family(
    model_type="mixtral",
    architecture="MixtralForCausalLM",
    parse=_parse,
    defaults={"num_key_value_heads": 8, "rms_norm_eps": 1e-5},
    read=frozenset({"num_experts", "num_local_experts"}),
    neutral={"attention_bias": (False,), "mlp_bias": (False,)},
)
