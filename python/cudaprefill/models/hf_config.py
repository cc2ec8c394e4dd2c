"""ModelConfig from the config.json and generation_config.json of a Hugging Face folder.

A missing key means what it means to transformers for that family. Keys that would change the computation in a way that
is not implemented must be absent, null or neutral; keys that transformers does not read for a family are ignored.
"""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

from cudaprefill.models.config import ModelConfig
from cudaprefill.models.errors import UnsupportedModelError, WeightsError
from cudaprefill.models.families import FAMILIES, NOT_COMPUTED, Family
from cudaprefill.models.fields import Fields
from cudaprefill.models.regular_file import check_regular_file

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


def read_hf_config(folder: Path) -> ModelConfig:
    """The configuration of the model in `folder`. Raises WeightsError for files that are not there or not JSON."""
    generation = folder / "generation_config.json"
    return parse_hf_config(read_json(folder / "config.json"), read_json(generation) if generation.exists() else {})


def parse_hf_config(config: dict[str, Any], generation: dict[str, Any] | None = None) -> ModelConfig:
    """`config` and `generation` are the contents of config.json and generation_config.json; the latter's ids win.

    Raises UnsupportedModelError with the key and its value for whatever this engine does not compute.
    """
    family = _family(Fields(config, "config.json"))
    fields = Fields({**family.defaults, **config}, "config.json")
    for key, allowed in {**_NEUTRAL, **family.neutral}.items():
        if key in family.read or (key == "quantization_config" and _is_of_the_kv_cache_alone(config.get(key))):
            continue
        fields.only(key, *allowed)
    given = {key: value for key, value in (generation or {}).items() if value is not None}
    ids = Fields({**fields.values, **given}, "config")
    return dataclasses.replace(
        family.parse(fields),
        bos_token_id=None if ids.get("bos_token_id") is None else ids.integer("bos_token_id", minimum=0),
        eos_token_ids=_eos_token_ids(ids),
    )


def _is_of_the_kv_cache_alone(quantization: Any) -> bool:
    """Whether weights and activations are as they were, and the checkpoint has scales of a float8 KV cache.

    As compressed-tensors writes it: no group of layers, and a scheme of the cache.
    """
    if not isinstance(quantization, dict) or quantization.get("config_groups") or quantization.get("quant_algo"):
        return False
    scheme = quantization.get("kv_cache_scheme")
    return isinstance(scheme, dict) and (scheme.get("type"), scheme.get("num_bits")) == ("float", 8)


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object. Raises WeightsError naming the file."""
    try:
        check_regular_file(path)
        text = path.read_bytes()
    except FileNotFoundError:
        raise WeightsError(f"{path} does not exist") from None
    except OSError as error:
        raise WeightsError(f"{path} cannot be read: {error.strerror}") from None
    try:
        content = json.loads(text.decode())
    except RecursionError:
        raise WeightsError(f"{path} is nested too deeply") from None
    except ValueError as error:
        raise WeightsError(f"{path} is not valid JSON: {error}") from None
    if not isinstance(content, dict):
        raise WeightsError(f"{path} must hold a JSON object, got {type(content).__name__}")
    return content


def _family(fields: Fields) -> Family:
    model_type, architectures = fields.optional_text("model_type"), fields.optional_texts("architectures") or []
    if model_type in NOT_COMPUTED:
        raise UnsupportedModelError(
            f"config.json: model_type = {model_type!r} is not supported: {NOT_COMPUTED[model_type]}"
        )
    fields.only("model_type", *FAMILIES)
    by_architecture = {family.architecture: family for family in FAMILIES.values()}
    if len(architectures) > 1 or any(name not in by_architecture for name in architectures):
        raise fields.unsupported("architectures", architectures, *by_architecture)
    if architectures:
        family = by_architecture[architectures[0]]
    elif model_type is not None:
        family = FAMILIES[model_type]
    else:
        raise UnsupportedModelError("config.json: architectures and model_type are missing")
    if model_type not in (None, family.model_type):
        raise UnsupportedModelError(f"config.json: model_type {model_type!r} contradicts architectures {architectures}")
    code = fields.mapping("auto_map").get("AutoModelForCausalLM")
    if code is not None and str(code).split(".")[-1] != family.architecture:  # else it is what transformers has as well
        raise UnsupportedModelError(f"config.json: auto_map asks for the model's own code {code!r}, which is never run")
    return family


def _eos_token_ids(fields: Fields) -> tuple[int, ...]:
    ids = fields.get("eos_token_id", [])
    ids = ids if isinstance(ids, list) else [ids]
    return tuple(Fields({"eos_token_id": token}, fields.where).integer("eos_token_id", minimum=0) for token in ids)
