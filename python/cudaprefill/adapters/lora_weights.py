"""The matrices of one LoRA adapter, laid out for `ops.add_lora`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from cudaprefill import ops
from cudaprefill.huge_pages import HugePages
from cudaprefill.ops import LoraPart

# The fused matrices of a layer, by their names in LayerWeights, and how many parts an adapter may have in each.
NUM_PARTS = {"qkv": 3, "o": 1, "gate_up": 2, "down": 1}


@dataclass(frozen=True)
class LoraPair:
    """A and B of one linear layer as PEFT has them, and which outputs of which fused matrix theirs are."""

    layer: int
    matrix: str  # one of NUM_PARTS
    first_output: int
    a: Tensor  # [r, inputs]
    b: Tensor  # [outputs, r]
    scale: float


@dataclass(frozen=True, eq=False)
class LoraWeights:
    """parts: [num_layers, NUM_PARTS, 6] int64 and scales: [num_layers, NUM_PARTS] float32 on the host, by matrix.

    They are rows of the tables of `add_lora`, and name memory of `tensors` by address.
    """

    parts: Mapping[str, Tensor]
    scales: Mapping[str, Tensor]
    tensors: tuple[Tensor, ...]

    @property
    def num_bytes(self) -> int:
        return sum(tensor.nbytes for tensor in self.tensors)


def lora_weights(pairs: list[LoraPair], num_layers: int, device: torch.device) -> LoraWeights:
    """Copies all pairs. A and B of each get the dtype that holds both."""
    order = list(NUM_PARTS)  # that of their use, so that each is read behind the one before
    pairs = sorted(pairs, key=lambda pair: (pair.layer, order.index(pair.matrix), pair.first_output))
    stored: list[Tensor] = []
    for pair in pairs:
        dtype = torch.promote_types(pair.a.dtype, pair.b.dtype)
        stored += (pair.a.to(dtype), ops.lora_tiles(pair.b.to(dtype)))
    if device.type == "cpu":
        num_bytes = sum(HugePages.size_of(tensor.shape, tensor.dtype) for tensor in stored)
        pages = HugePages(num_bytes, "an adapter")
        tensors = [pages.empty(tensor.shape, tensor.dtype).copy_(tensor) for tensor in stored]
    else:
        tensors = [tensor.to(device) for tensor in stored]
    layers: dict[str, list[list[LoraPart]]] = {matrix: [[] for _ in range(num_layers)] for matrix in NUM_PARTS}
    for pair, a, b in zip(pairs, tensors[::2], tensors[1::2], strict=True):
        part = LoraPart(a, b, pair.scale, pair.first_output, pair.b.shape[0])
        layers[pair.matrix][pair.layer].append(part)
    host = torch.device("cpu")
    tables = {matrix: ops.lora_parts(layers[matrix], host, most) for matrix, most in NUM_PARTS.items()}
    return LoraWeights(
        parts={matrix: parts for matrix, (parts, _) in tables.items()},
        scales={matrix: scales for matrix, (_, scales) in tables.items()},
        tensors=tuple(tensors),
    )
