"""ModelConfig from the metadata of a GGUF file.

The keys of an architecture are a closed list, so one that is not known here is refused rather than ignored.
"""

from __future__ import annotations

from typing import Any

from cudaprefill.models.config import LayerConfig, ModelConfig
from cudaprefill.models.errors import UnsupportedModelError
from cudaprefill.models.fields import Fields
from cudaprefill.models.gguf import GgufFile
from cudaprefill.models.rope import RopeConfig, yarn_attention_factor

_FAMILIES = ("llama", "qwen2", "qwen3")  # Mistral's files use the llama architecture
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


def parse_gguf_config(file: GgufFile) -> ModelConfig:
    """Raises UnsupportedModelError with the key and its value for whatever this engine does not compute."""
    where = file.path.name
    metadata = Fields(file.metadata, where)
    family = metadata.get("general.architecture")
    if family not in _FAMILIES:
        raise metadata.unsupported("general.architecture", family, *_FAMILIES)
    prefix = f"{family}."
    values = {key.removeprefix(prefix): value for key, value in file.metadata.items() if key.startswith(prefix)}
    fields = Fields({key: _same_in_all_layers(where, key, value) for key, value in values.items()}, where)
    for key, value in fields.values.items():
        if key not in _KNOWN and key not in _NEUTRAL:
            raise UnsupportedModelError(f"{where}: {prefix}{key} = {value!r} is unknown")
    for key, allowed in _NEUTRAL.items():
        fields.only(key, *allowed)

    num_q_heads = fields.integer("attention.head_count")
    head_size = fields.integer("attention.key_length", fields.integer("embedding_length") // num_q_heads)
    for key in ("attention.value_length", "rope.dimension_count"):
        fields.only(key, head_size)
    rope = _rope(fields)
    max_model_len = max(fields.integer("context_length"), int(rope.factor * rope.original_max_position))
    window = fields.integer("attention.sliding_window", 0, minimum=0)
    return ModelConfig(
        family=family,
        layers=(LayerConfig(rope=rope, window=window if window < max_model_len else 0),)
        * fields.num_layers("block_count"),
        hidden_size=fields.integer("embedding_length"),
        intermediate_size=fields.integer("feed_forward_length"),
        num_q_heads=num_q_heads,
        num_kv_heads=fields.integer("attention.head_count_kv", num_q_heads),
        head_size=head_size,
        vocab_size=_vocab_size(file),
        max_model_len=max_model_len,
        rms_norm_eps=fields.number("attention.layer_norm_rms_epsilon"),
        qkv_bias="blk.0.attn_q.bias" in file.tensors,
        o_bias="blk.0.attn_output.bias" in file.tensors,
        mlp_bias="blk.0.ffn_gate.bias" in file.tensors,
        qk_norm=family == "qwen3",
        tied_embeddings="output.weight" not in file.tensors,
        bos_token_id=metadata.get("tokenizer.ggml.bos_token_id"),
        eos_token_ids=_eos_token_ids(metadata),
    )


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
    ids = [metadata.get(f"tokenizer.ggml.{kind}_token_id") for kind in ("eos", "eot", "eom")]
    return tuple(dict.fromkeys(token for token in ids if token is not None))
