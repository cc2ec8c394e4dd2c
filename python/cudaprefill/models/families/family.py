"""What a family of models is: how its config.json becomes a ModelConfig."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from cudaprefill.models.config import LayerConfig, ModelConfig
from cudaprefill.models.errors import UnsupportedModelError
from cudaprefill.models.fields import Fields
from cudaprefill.models.rope import RopeConfig

ROPE_TYPES = ("default", "linear", "llama3", "yarn")


@dataclass(frozen=True, kw_only=True)
class Family:
    """A model_type of transformers and the class that runs it there.

    A configuration may say nothing but what is computed: `read` names the keys that this family reads although most
    families must leave them neutral, `neutral` the further keys of which it takes only the values given.
    """

    model_type: str
    architecture: str
    parse: Callable[[Fields], ModelConfig]
    defaults: Mapping[str, Any] = field(default_factory=dict)  # what an absent key means to transformers
    read: frozenset[str] = frozenset()
    neutral: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)


def model_config(
    fields: Fields, family: str, head_size: int, layers: tuple[LayerConfig, ...], **traits: Any
) -> ModelConfig:
    """A model with the sizes that all families give by the same keys; `traits` are further fields of ModelConfig."""
    num_q_heads = fields.integer("num_attention_heads")
    return ModelConfig(
        family=family,
        layers=layers,
        hidden_size=fields.integer("hidden_size"),
        intermediate_size=fields.integer("intermediate_size"),
        num_q_heads=num_q_heads,
        num_kv_heads=fields.integer("num_key_value_heads", num_q_heads),
        head_size=head_size,
        vocab_size=fields.integer("vocab_size"),
        max_model_len=max(max_model_len(fields, rope) for rope in {layer.rope for layer in layers}),
        rms_norm_eps=fields.number("rms_norm_eps"),
        tied_embeddings=fields.flag("tie_word_embeddings"),
        **traits,
    )


def max_model_len(fields: Fields, rope: RopeConfig) -> int:
    stated = fields.integer("max_position_embeddings")
    if rope.rope_type == "yarn":  # some models state the length before the stretch, others the one after
        return max(stated, int(rope.factor * rope.original_max_position))
    return stated


def read_head_size(fields: Fields) -> int:
    hidden_size, num_q_heads = fields.integer("hidden_size"), fields.integer("num_attention_heads")
    if fields.get("head_dim") is None and hidden_size % num_q_heads:
        raise UnsupportedModelError(
            f"config.json: hidden_size {hidden_size} is not a multiple of num_attention_heads {num_q_heads}, "
            "and head_dim is missing"
        )
    return fields.integer("head_dim", hidden_size // num_q_heads)


def same_layers(fields: Fields, rope: RopeConfig, window: int | None) -> tuple[LayerConfig, ...]:
    """All layers alike. `window` is None where no key is out of sight."""
    layer_types = read_layer_types(fields)
    num_layers = fields.num_layers("num_hidden_layers")
    window = visible(window, fields, rope)
    if layer_types is not None and window and layer_types.count("sliding_attention") != num_layers:
        raise UnsupportedModelError(
            f"config.json: sliding_window {window} is that of all {num_layers} layers, but layer_types has it in "
            f"{layer_types.count('sliding_attention')}"
        )
    if layer_types is not None and "sliding_attention" in layer_types and window is None:
        raise _no_window(layer_types)
    return (LayerConfig(rope=rope, window=window or 0),) * num_layers


def read_windows(
    fields: Fields, rope: RopeConfig, window: int | None, is_windowed: Callable[[int], bool]
) -> tuple[int, ...]:
    """The window of each layer: those of which layer_types, or else `is_windowed`, says so have one."""
    layer_types = read_layer_types(fields)
    numbers = range(fields.num_layers("num_hidden_layers"))
    if layer_types is not None:
        windowed = [layer_types[number] == "sliding_attention" for number in numbers]
        if any(windowed) and window is None:
            raise _no_window(layer_types)
    else:
        windowed = [window is not None and is_windowed(number) for number in numbers]
    return tuple(visible(window, fields, rope) or 0 if of else 0 for of in windowed)


def read_layer_types(fields: Fields) -> list[str] | None:
    num_layers, layer_types = fields.num_layers("num_hidden_layers"), fields.optional_texts("layer_types")
    if layer_types is not None and (
        len(layer_types) != num_layers or set(layer_types) - {"full_attention", "sliding_attention"}
    ):
        raise fields.unsupported(
            "layer_types", layer_types, f"'full_attention' or 'sliding_attention' for each of {num_layers} layers"
        )
    return layer_types


def visible(window: int | None, fields: Fields, rope: RopeConfig) -> int | None:
    """The window, 0 where it is as long as the context and hides nothing."""
    return window if window is None or window < max_model_len(fields, rope) else 0


def _no_window(layer_types: list[str]) -> UnsupportedModelError:
    windowed = layer_types.count("sliding_attention")
    return UnsupportedModelError(f"config.json: layer_types has {windowed} windowed layers but no window is set")
