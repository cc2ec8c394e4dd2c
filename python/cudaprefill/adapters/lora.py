"""LoRA: low-rank matrices beside the linear layers, read from PEFT's checkpoints.

A layer's output becomes ``W x + scale * B A x``. What is not served is refused with its reason: DoRA, biases,
embeddings, and whatever else would give other results than PEFT's.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from cudaprefill import ops
from cudaprefill.adapters.adapter import Adapter, AdapterTarget
from cudaprefill.adapters.config import AdapterFields
from cudaprefill.adapters.errors import AdapterError
from cudaprefill.adapters.files import CONFIG, TENSORS, content_hash, in_dtype
from cudaprefill.adapters.lora_weights import NUM_PARTS, LoraPair, lora_weights
from cudaprefill.adapters.patterns import ANY_PARENT, matches
from cudaprefill.models.config import ModelConfig
from cudaprefill.models.weights import stored_matrices
from cudaprefill.sampling_params import show

# Keys that are read here, and those that say how an adapter was begun or trained and change no result.
_KNOWN = {
    *("r", "lora_alpha", "use_rslora", "rank_pattern", "alpha_pattern", "target_modules", "exclude_modules"),
    *("layers_to_transform", "layers_pattern", "bias", "init_lora_weights", "use_dora", "layer_replication"),
    *("lora_dropout", "eva_config", "megatron_core", "qalora_group_size"),
}
# Ways to begin that leave the base model's weights alone. The others (PiSSA, OLoRA, CorDA, LoftQ) take out of them what
# they put into the adapter, so that it fits no unchanged base model.
_PLAIN_BEGINNINGS = (True, False, "gaussian", "eva", "orthogonal")

_MAX_ALPHA = torch.finfo(torch.float32).max

_NAME = re.compile(r"base_model\.model\.(?P<module>.+)\.lora_(?P<side>[AB])\.weight")
_UNSERVED_TENSORS = {
    "lora_magnitude_vector": "DoRA is not served",
    "lora_embedding_": "LoRA of embeddings is not served",
    ".bias": "trained biases are not served",
    "modules_to_save": "fully trained modules are not served",
}


class _Module(NamedTuple):
    """A linear layer of the base model that an adapter may have a pair for."""

    layer: int
    matrix: str  # that of LayerWeights which it is fused into
    first_output: int
    num_outputs: int
    num_inputs: int


def load_lora_adapter(
    name: str, folder: Path, fields: AdapterFields, tensors: Mapping[str, Tensor], target: AdapterTarget
) -> Adapter:
    """Raises AdapterError saying what is wrong."""
    _refuse_what_is_not_served(fields)
    modules = _modules(target.model)
    targeted = _targeted(fields, modules)
    sides = _sides(tensors, modules, fields)
    missing = [module for module in targeted if len(sides.get(module, ())) < 2]
    if missing:
        raise AdapterError(f"{TENSORS} lacks lora_A or lora_B of {len(missing)} target modules, such as {missing[0]!r}")
    dtype = _dtype(target)
    pairs = []
    scales = {}
    for path, of_module in sides.items():
        if path not in targeted:
            raise AdapterError(f"{TENSORS} has tensors of {path!r}, which {CONFIG} does not name as a target")
        rank, scales[path] = _rank_and_scale(fields, path)
        module = modules[path]
        _check_shape(path, "A", of_module["A"], (rank, module.num_inputs), fields)
        _check_shape(path, "B", of_module["B"], (module.num_outputs, rank), fields)
        if dtype is not None:
            of_module = {side: in_dtype(f"{path}.lora_{side}", of_module[side], dtype) for side in "AB"}
        pair = LoraPair(module.layer, module.matrix, module.first_output, of_module["A"], of_module["B"], scales[path])
        pairs.append(pair)
    return Adapter(
        name,
        folder,
        "LoRA",
        content_hash({"peft_type": "LORA", "scales": scales}, tensors),
        lora=lora_weights(pairs, target.model.num_layers, target.device),
    )


def _dtype(target: AdapterTarget) -> torch.dtype | None:
    """What matrices are converted to; None: they keep the precision in which they are stored.

    The kernels of a GPU multiply numbers of one dtype. On a CPU a decode step of many adapters takes the time of
    reading them; where activations are rounded to 8 bits, matrices may be to 16, which takes half of that time.
    """
    if target.device.type != "cpu":
        return target.activation_dtype
    return torch.bfloat16 if target.int8 else None


def most_lora_numbers(model: ModelConfig) -> int:
    """Of the matrices of an adapter of the highest rank for all layers."""
    return ops.MAX_LORA_RANK * sum(module.num_inputs + module.num_outputs for module in _modules(model).values())


def _refuse_what_is_not_served(fields: AdapterFields) -> None:
    fields.only("use_dora", False)
    fields.only("bias", "none")
    fields.only("layer_replication", [])
    beginning = fields.get("init_lora_weights", True)
    if beginning not in _PLAIN_BEGINNINGS:
        raise AdapterError(
            f"{CONFIG}: init_lora_weights = {show(beginning)} is not supported: it changes the base model's weights; "
            "PEFT converts such an adapter with path_initial_model_for_weight_conversion"
        )
    fields.know_only(_KNOWN)


def _modules(config: ModelConfig) -> dict[str, _Module]:
    """The linear layers of the base model, by the names that transformers gives them; those of experts are left out."""
    modules = {}
    for layer, of_layer in enumerate(config.layers):
        for matrix, stored in stored_matrices(config, layer).items():
            if matrix not in NUM_PARTS or (of_layer.experts is not None and matrix in ("gate_up", "down")):
                continue
            first = 0
            for path, num_outputs in zip(stored.parts, stored.rows, strict=True):
                modules[path] = _Module(layer, matrix, first, num_outputs, stored.num_inputs)
                first += num_outputs
    return modules


def _targeted(fields: AdapterFields, modules: Mapping[str, _Module]) -> set[str]:
    """The modules that the configuration names. Raises AdapterError for a name that none has."""
    targets, excluded = fields.get("target_modules"), fields.get("exclude_modules", [])
    if targets is None:
        raise AdapterError(f"{CONFIG}: target_modules is missing")
    for key, value in (("target_modules", targets), ("exclude_modules", excluded)):
        if not isinstance(value, str) and not _is_list_of(str, value):
            raise AdapterError(f"{CONFIG}: {key} must be a pattern or a list of names, got {show(value)}")
    if targets == "all-linear":
        chosen = set(modules)
    elif isinstance(targets, str):
        chosen = {path for path in modules if matches("target_modules", targets, path)}
    else:
        for name in targets:
            if not any(_is_named(path, name) for path in modules):
                raise AdapterError(
                    f"{CONFIG}: target_modules names {show(name)}, which is no linear layer in which LoRA is served; "
                    f"the adapter was made for {fields.made_for}"
                )
        chosen = {path for path in modules if any(_is_named(path, name) for name in targets)}
        chosen = {path for path in chosen if _in_layers(fields, path, modules[path].layer)}
    if isinstance(excluded, str):
        chosen = {path for path in chosen if not matches("exclude_modules", excluded, path)}
    else:
        chosen = {path for path in chosen if not any(_is_named(path, name) for name in excluded)}
    if not chosen:
        raise AdapterError(f"{CONFIG}: target_modules = {show(targets)} names no linear layer of the model")
    return chosen


def _is_named(path: str, name: str) -> bool:
    return path == name or path.endswith(f".{name}")


def _in_layers(fields: AdapterFields, path: str, layer: int) -> bool:
    """Whether the module's layer is among those that a list of names is for."""
    layers = fields.get("layers_to_transform")
    if layers is None or layers == []:
        return True
    layers = [layers] if isinstance(layers, int) else layers
    if not _is_list_of(int, layers):
        raise AdapterError(f"{CONFIG}: layers_to_transform must be a layer or a list of them, got {show(layers)}")
    patterns = fields.get("layers_pattern") or [r"[^.]*"]
    patterns = [patterns] if isinstance(patterns, str) else patterns
    if not _is_list_of(str, patterns):
        raise AdapterError(f"{CONFIG}: layers_pattern must be a pattern or a list of them, got {show(patterns)}")
    named = (matches("layers_pattern", each, path, before=ANY_PARENT, after=r"\.\d+\..*") for each in patterns)
    return layer in layers and any(named)


def _sides(
    tensors: Mapping[str, Tensor], modules: Mapping[str, _Module], fields: AdapterFields
) -> dict[str, dict[str, Tensor]]:
    """The tensors "A" and "B" of each module. Raises AdapterError for tensors that are neither."""
    sides: dict[str, dict[str, Tensor]] = {}
    for name, tensor in tensors.items():
        match = _NAME.fullmatch(name)
        if match is None:
            reason = next((why for part, why in _UNSERVED_TENSORS.items() if part in name), "it is not known")
            raise AdapterError(f"{TENSORS} holds the tensor {name!r}: {reason}")
        module = match["module"]
        if module not in modules:
            raise AdapterError(
                f"{TENSORS} holds the tensor {name!r}, but the model has no linear layer {module!r} in which LoRA is "
                f"served; the adapter was made for {fields.made_for}"
            )
        sides.setdefault(module, {})[match["side"]] = tensor
    return sides


def _rank_and_scale(fields: AdapterFields, path: str) -> tuple[int, float]:
    """Of one module: what the first pattern that fits its name says, or what holds for all."""

    def of_module(patterns_key: str, default: Any) -> tuple[str, Any]:
        patterns = fields.get(patterns_key, {})
        if not isinstance(patterns, dict):
            raise AdapterError(f"{CONFIG}: {patterns_key} must map patterns to values, got {show(patterns)}")
        for pattern, value in patterns.items():
            if matches(patterns_key, pattern, path, before=ANY_PARENT):
                return f"{patterns_key}[{pattern!r}]", value
        return "", default

    key, rank = of_module("rank_pattern", fields.integer("r"))
    if isinstance(rank, bool) or not isinstance(rank, int) or not 1 <= rank <= ops.MAX_LORA_RANK:
        raise AdapterError(
            f"{CONFIG}: {key or 'r'} must be a rank of 1 to {ops.MAX_LORA_RANK}, which is the highest, got {show(rank)}"
        )
    key, alpha = of_module("alpha_pattern", fields.get("lora_alpha", 8))
    # Beyond float32, in which it multiplies, it would be infinite. NaN is neither below nor above.
    if isinstance(alpha, bool) or not isinstance(alpha, (int, float)) or not abs(alpha) <= _MAX_ALPHA:
        raise AdapterError(
            f"{CONFIG}: {key or 'lora_alpha'} must be a number of at most {_MAX_ALPHA:.2g}, got {show(alpha)}"
        )
    return rank, alpha / (math.sqrt(rank) if fields.flag("use_rslora") else rank)


def _check_shape(path: str, side: str, tensor: Tensor, shape: tuple[int, int], fields: AdapterFields) -> None:
    if tuple(tensor.shape) != shape:
        raise AdapterError(
            f"{TENSORS}: lora_{side} of {path!r} must have the shape {shape} by the configuration and the model, got "
            f"{tuple(tensor.shape)}; the adapter was made for {fields.made_for}"
        )


def _is_list_of(kind: type, value: object) -> bool:
    return isinstance(value, list) and all(isinstance(each, kind) and not isinstance(each, bool) for each in value)
