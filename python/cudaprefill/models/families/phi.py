"""Phi-3, Phi-3.5, Phi-4 and Phi-4-mini: q, k and v are one matrix in the file, as are gate and up.

Only a part of a head may turn, and the factors of a longrope differ within and beyond the positions of the pretraining.
"""

from __future__ import annotations

from cudaprefill.models.checkpoint_names import CheckpointNames
from cudaprefill.models.config import ModelConfig
from cudaprefill.models.families.family import Family, model_config, read_head_size, same_layers
from cudaprefill.models.fields import Fields
from cudaprefill.models.hf_rope import read_rope

NAMES = CheckpointNames(qkv=("self_attn.qkv_proj",), gate_up=("mlp.gate_up_proj",))


def _parse(fields: Fields) -> ModelConfig:
    head_size = read_head_size(fields)
    rope = read_rope(fields, head_size, ("default", "longrope"), rotates_partly=True)
    return model_config(
        fields, "phi3", head_size, same_layers(fields, rope, fields.optional_integer("sliding_window")), names=NAMES
    )


PHI3 = Family(
    model_type="phi3",
    architecture="Phi3ForCausalLM",
    parse=_parse,
    defaults={"original_max_position_embeddings": 4096, "rms_norm_eps": 1e-5},
    read=frozenset({"partial_rotary_factor"}),
    neutral={"attention_bias": (False,), "mlp_bias": (False,), "lm_head_bias": (False,)},
)
