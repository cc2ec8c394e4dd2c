"""The scales of a float8 KV cache that checkpoints carry, as llm-compressor, ModelOpt and vLLM name them.

    model.layers.0.self_attn.k_scale           compressed-tensors
    model.layers.0.self_attn.k_proj.k_scale    ModelOpt
    model.layers.0.self_attn.attn.k_scale      vLLM's own parameters

and the same of v, one number for all KV heads or one for each.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from cudaprefill.models.config import ModelConfig
from cudaprefill.models.errors import WeightsError

if TYPE_CHECKING:
    from cudaprefill.models.weights import TensorSource

_SCALE = re.compile(r"model\.layers\.(\d+)\.self_attn\.(?:attn\.|qkv_proj\.|k_proj\.(?=k)|v_proj\.(?=v))?([kv])_scale")


def is_scale(name: str) -> bool:
    return _SCALE.fullmatch(name) is not None


def check_scales(config: ModelConfig, shapes: Mapping[str, tuple[int, ...]]) -> None:
    """Raises WeightsError naming a scale that is missing beside others, that is there twice, that has another number of
    elements, or whose layer the model does not have.
    """
    names = _scales_by_place(config, shapes)
    if not names:
        return
    for layer in range(config.num_layers):
        for which in "kv":
            if (layer, which) not in names:
                raise WeightsError(f"missing {which}_scale of layer {layer}, where other layers have theirs")
            name = names[layer, which]
            count = torch.Size(shapes[name]).numel()
            if count not in (1, config.num_kv_heads):
                raise WeightsError(
                    f"tensor {name!r} must have 1 element or {config.num_kv_heads}, one for each KV head, got {count}"
                )


def read_scales(config: ModelConfig, source: TensorSource, device: torch.device) -> Tensor | None:
    """[num_layers, 2, Hkv] float32, of a checked source; None where it has none.

    Raises WeightsError for a scale that is not a normal number above 0.
    """
    names = _scales_by_place(config, source.shapes)
    if not names:
        return None
    scales = torch.empty((config.num_layers, 2, config.num_kv_heads))
    for (layer, which), name in names.items():
        stored = torch.empty(source.shapes[name])
        source.copy_into(name, stored)
        scales[layer, "kv".index(which)] = stored.flatten()
        wrong = stored[~(stored.isfinite() & (stored >= torch.finfo(torch.float32).tiny))]
        if len(wrong):
            raise WeightsError(f"tensor {name!r} must hold normal numbers above 0, got {wrong[0].item():g}")
    return scales.to(device)


def _scales_by_place(config: ModelConfig, names: Iterable[str]) -> dict[tuple[int, str], str]:
    """By layer and "k" or "v"."""
    found: dict[tuple[int, str], str] = {}
    for name in names:
        if match := _SCALE.fullmatch(name):
            layer, which = int(match[1]), match[2]
            if layer >= config.num_layers:
                raise WeightsError(
                    f"tensor {name!r} is of layer {layer}, and the last layer is {config.num_layers - 1}"
                )
            other = found.setdefault((layer, which), name)
            if other != name:
                raise WeightsError(f"tensors {other!r} and {name!r} are both the {which}_scale of layer {layer}")
    return found
