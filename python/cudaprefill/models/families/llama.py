"""Llama and Mistral, whose layers are all alike."""

from __future__ import annotations

from cudaprefill.models.config import ModelConfig
from cudaprefill.models.families.family import ROPE_TYPES, Family, model_config, read_head_size, same_layers
from cudaprefill.models.fields import Fields
from cudaprefill.models.hf_rope import read_rope


def _parse_llama(fields: Fields) -> ModelConfig:
    head_size = read_head_size(fields)
    biased = fields.flag("attention_bias")
    return model_config(
        fields,
        "llama",
        head_size,
        same_layers(fields, read_rope(fields, head_size, ROPE_TYPES), window=None),
        qkv_bias=biased,
        o_bias=biased,
        mlp_bias=fields.flag("mlp_bias"),
    )


def _parse_mistral(fields: Fields) -> ModelConfig:
    head_size = read_head_size(fields)
    rope = read_rope(fields, head_size, ROPE_TYPES)
    return model_config(
        fields, "mistral", head_size, same_layers(fields, rope, fields.optional_integer("sliding_window"))
    )


LLAMA = Family(
    model_type="llama",
    architecture="LlamaForCausalLM",
    parse=_parse_llama,
    neutral={"sliding_window": ()},
)
MISTRAL = Family(
    model_type="mistral",
    architecture="MistralForCausalLM",
    parse=_parse_mistral,
    defaults={"sliding_window": 4096},
    neutral={"attention_bias": (False,), "mlp_bias": (False,)},
)
