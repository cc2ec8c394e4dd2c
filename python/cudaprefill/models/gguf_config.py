"""ModelConfig from the metadata of a GGUF file.

The keys of an architecture are a closed list, so one that is not known here is refused rather than ignored.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from cudaprefill.models.config import ExpertsConfig, LayerConfig, ModelConfig
from cudaprefill.models.errors import UnsupportedModelError
from cudaprefill.models.families import gemma, mixtral, phi
from cudaprefill.models.fields import Fields
from cudaprefill.models.gguf import GgufFile
from cudaprefill.models.rope import RopeConfig, longrope_attention_factor, yarn_attention_factor

LONG_FACTORS, SHORT_FACTORS = "rope_factors_long.weight", "rope_factors_short.weight"
_EXPERTS = frozenset({"expert_count", "expert_used_count", "expert_feed_forward_length"})
_KNOWN = {
    "block_count",
    "context_length",
    "embedding_length",
    "feed_forward_length",
    "vocab_size",
    "attention.head_count",
    "attention.head_count_kv",
    "attention.key_length",
    "attention.value_length",
    "attention.layer_norm_rms_epsilon",
    "attention.sliding_window",
    "rope.dimension_count",
    "rope.freq_base",
    "rope.scaling.type",
    "rope.scaling.factor",
    "rope.scaling.original_context_length",
    "rope.scaling.finetuned",
}
_NEUTRAL: dict[str, tuple[Any, ...]] = {
    "expert_count": (0,),
    "expert_used_count": (0,),
    "attention.causal": (True,),
    "tensor_data_layout": ("Meta AI original pth",),  # the row order of q and k that is undone for llama
    "rope.scaling.attn_factor": (1.0,),
}


@dataclass(frozen=True)
class _Architecture:
    """What an architecture has beyond Llama. `known` are its further keys, `add` puts them into the configuration."""

    known: frozenset[str] = frozenset()
    rotates_partly: bool = False
    add: Callable[[ModelConfig, Fields, GgufFile], ModelConfig] = lambda config, fields, file: config


def parse_gguf_config(file: GgufFile) -> ModelConfig:
    """Raises UnsupportedModelError with the key and its value for whatever this engine does not compute."""
    where = file.path.name
    metadata = Fields(file.metadata, where)
    name = metadata.get("general.architecture")
    if not isinstance(name, str) or name not in _ARCHITECTURES:
        raise metadata.unsupported("general.architecture", name, *_ARCHITECTURES)
    architecture = _ARCHITECTURES[name]
    prefix = f"{name}."
    values = {key.removeprefix(prefix): value for key, value in file.metadata.items() if key.startswith(prefix)}
    fields = Fields({key: _same_in_all_layers(where, key, value) for key, value in values.items()}, where)
    for key, value in fields.values.items():
        if key not in _KNOWN and key not in _NEUTRAL and key not in architecture.known:
            raise UnsupportedModelError(f"{where}: {prefix}{key} = {value!r} is unknown")
    for key, allowed in _NEUTRAL.items():
        if key not in architecture.known:
            fields.only(key, *allowed)

    num_q_heads = fields.integer("attention.head_count")
    head_size = fields.integer("attention.key_length", fields.integer("embedding_length") // num_q_heads)
    fields.only("attention.value_length", head_size)
    if not architecture.rotates_partly:
        fields.only("rope.dimension_count", head_size)
    rope = _rope(fields)
    max_model_len = max(fields.integer("context_length"), int(rope.factor * rope.original_max_position))
    window = fields.integer("attention.sliding_window", 0, minimum=0)
    layer = LayerConfig(rope=rope, window=window if window < max_model_len else 0)
    config = ModelConfig(
        family=name,
        layers=(layer,) * fields.num_layers("block_count"),
        hidden_size=fields.integer("embedding_length"),
        intermediate_size=fields.integer("feed_forward_length", 1 if "expert_count" in fields.values else None),
        num_q_heads=num_q_heads,
        num_kv_heads=fields.integer("attention.head_count_kv", num_q_heads),
        head_size=head_size,
        vocab_size=_vocab_size(file),
        max_model_len=max_model_len,
        rms_norm_eps=fields.number("attention.layer_norm_rms_epsilon"),
        qkv_bias="blk.0.attn_q.bias" in file.tensors,
        o_bias="blk.0.attn_output.bias" in file.tensors,
        mlp_bias="blk.0.ffn_gate.bias" in file.tensors,
        tied_embeddings="output.weight" not in file.tensors,
        bos_token_id=_token_id(metadata, "bos"),
        eos_token_ids=_eos_token_ids(metadata),
    )
    return architecture.add(config, fields, file)


def _add_llama(config: ModelConfig, fields: Fields, file: GgufFile) -> ModelConfig:
    """Mixtral's files use the llama architecture, as Mistral's do."""
    if not fields.get("expert_count", 0):
        return config
    return _with_experts(replace(config, family="mixtral", names=mixtral.NAMES), fields, config.intermediate_size)


def _add_qwen3(config: ModelConfig, fields: Fields, file: GgufFile) -> ModelConfig:
    return replace(config, qk_norm=True)


def _add_qwen3_moe(config: ModelConfig, fields: Fields, file: GgufFile) -> ModelConfig:
    inner = fields.integer("expert_feed_forward_length")
    return _with_experts(replace(config, family="qwen3_moe", qk_norm=True), fields, inner)


def _with_experts(config: ModelConfig, fields: Fields, inner: int) -> ModelConfig:
    """In every layer; the files of these architectures say nothing of renormalising, which all of them mean."""
    experts = ExpertsConfig(
        num_experts=fields.num_experts("expert_count"),
        num_chosen=fields.integer("expert_used_count"),
        intermediate_size=inner,
        renormalise=True,
    )
    return replace(config, layers=tuple(replace(layer, experts=experts) for layer in config.layers))


def _add_gemma(config: ModelConfig, fields: Fields) -> ModelConfig:
    """The norms of the files have the 1 already, which is why there is no offset."""
    return replace(
        config,
        activation="gelu_tanh",
        logits_softcap=_softcap(fields, "final_logit_softcapping"),
        embedding_scale=config.hidden_size**0.5,
        output_norms=True,
        names=gemma.NAMES,
    )


def _add_gemma2(config: ModelConfig, fields: Fields, file: GgufFile) -> ModelConfig:
    layers = tuple(replace(of, window=of.window if number % 2 == 0 else 0) for number, of in enumerate(config.layers))
    return replace(
        _add_gemma(config, fields),
        layers=layers,
        attention_scale=_gemma_scale(config, layers_of_27b=46),
        attention_softcap=_softcap(fields, "attn_logit_softcapping"),
    )


def _add_gemma3(config: ModelConfig, fields: Fields, file: GgufFile) -> ModelConfig:
    near = RopeConfig(rope_type="default", theta=fields.number("rope.freq_base_swa", 10_000.0))
    layers = tuple(
        replace(of, window=0) if (number + 1) % 6 == 0 else replace(of, rope=near)
        for number, of in enumerate(config.layers)
    )
    scale = _gemma_scale(config, layers_of_27b=62)
    return replace(_add_gemma(config, fields), layers=layers, attention_scale=scale, qk_norm=True)


def _gemma_scale(config: ModelConfig, layers_of_27b: int) -> float:
    """Files do not say it: the models of 27 B scale by hidden_size / num_q_heads, which is not their head size."""
    if config.num_layers == layers_of_27b:
        return float((config.hidden_size // config.num_q_heads) ** -0.5)
    return float(config.head_size**-0.5)


def _softcap(fields: Fields, key: str) -> float:
    return 0.0 if fields.get(key) is None else fields.number(key)


def _add_phi3(config: ModelConfig, fields: Fields, file: GgufFile) -> ModelConfig:
    """A longrope is known by its factors, which are tensors."""
    rotary_dim = fields.integer("rope.dimension_count", config.head_size)
    if rotary_dim % 2 or rotary_dim > config.head_size:
        raise fields.unsupported("rope.dimension_count", rotary_dim, f"an even number up to {config.head_size}")
    rope = replace(config.layers[0].rope, rotary_dim=rotary_dim if rotary_dim < config.head_size else 0)
    if LONG_FACTORS in file.tensors:
        original = fields.integer("rope.scaling.original_context_length")
        inferred = longrope_attention_factor(config.max_model_len / original, original)
        rope = replace(
            rope,
            rope_type="longrope",
            original_max_position=original,
            attention_factor=fields.number("rope.scaling.attn_factor", inferred),
            short_factors=_factors(fields, file, SHORT_FACTORS, rotary_dim // 2),
            long_factors=_factors(fields, file, LONG_FACTORS, rotary_dim // 2),
        )
    return replace(config, layers=tuple(replace(layer, rope=rope) for layer in config.layers), names=phi.NAMES)


def _factors(fields: Fields, file: GgufFile, name: str, count: int) -> tuple[float, ...]:
    tensor = file.tensors.get(name)
    if tensor is None or tensor.shape != (count,):
        given = "it is missing" if tensor is None else f"got {tensor.shape}"
        raise UnsupportedModelError(f"{fields.where}: tensor {name!r} must have the shape {(count,)}, {given}")
    return tuple(tensor.dequantise(tensor.rows).flatten().tolist())


_ARCHITECTURES = {
    "llama": _Architecture(_EXPERTS, add=_add_llama),
    "qwen2": _Architecture(),
    "qwen3": _Architecture(add=_add_qwen3),
    "qwen3moe": _Architecture(_EXPERTS, add=_add_qwen3_moe),
    "gemma2": _Architecture(frozenset({"attn_logit_softcapping", "final_logit_softcapping"}), add=_add_gemma2),
    "gemma3": _Architecture(frozenset({"rope.freq_base_swa", "final_logit_softcapping"}), add=_add_gemma3),
    "phi3": _Architecture(frozenset({"rope.scaling.attn_factor"}), rotates_partly=True, add=_add_phi3),
}


def _same_in_all_layers(where: str, key: str, value: Any) -> Any:
    if not isinstance(value, list):
        return value
    if len(set(value)) != 1:
        raise UnsupportedModelError(f"{where}: {key} = {value} differs among the layers")
    return value[0]


def _vocab_size(file: GgufFile) -> int:
    if "token_embd.weight" not in file.tensors:
        raise UnsupportedModelError(f"{file.path.name}: tensor 'token_embd.weight' is missing")
    return file.tensors["token_embd.weight"].shape[0]


def _rope(fields: Fields) -> RopeConfig:
    theta = fields.number("rope.freq_base", 10000.0)
    kind = fields.get("rope.scaling.type", "none")
    if kind == "none":
        return RopeConfig(rope_type="default", theta=theta)
    factor = fields.number("rope.scaling.factor")
    if kind == "linear":
        return RopeConfig(rope_type="linear", theta=theta, factor=factor)
    if kind == "yarn":
        return RopeConfig(
            rope_type="yarn",
            theta=theta,
            factor=factor,
            original_max_position=fields.integer("rope.scaling.original_context_length"),
            attention_factor=yarn_attention_factor(factor),
        )
    raise fields.unsupported("rope.scaling.type", kind, "none", "linear", "yarn")


def _eos_token_ids(metadata: Fields) -> tuple[int, ...]:
    """End of sequence, of turn and of message: whichever the file names, each once."""
    ids = [_token_id(metadata, kind) for kind in ("eos", "eot", "eom")]
    return tuple(dict.fromkeys(token for token in ids if token is not None))


def _token_id(metadata: Fields, kind: str) -> int | None:
    """Where the file names one; a file that has none may say so by the largest number of 32 bits."""
    key = f"tokenizer.ggml.{kind}_token_id"
    return None if metadata.get(key) is None else metadata.integer(key, minimum=0, maximum=2**32 - 1)
