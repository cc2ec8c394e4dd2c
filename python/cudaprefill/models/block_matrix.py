"""A weight matrix that stays in the blocks of its GGUF file.

A 4-bit matrix takes a sixth of the memory of its float32 values, and a decode step takes the time of reading all
weights once. A kernel decodes blocks in registers and computes in float32, or multiplies the numbers of a block with
activations of 8 or 16 bits.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from cudaprefill import ops


@dataclass(frozen=True)
class BlockRows:
    """Rows of one format, rearranged into groups as the kernels read them."""

    groups: Tensor  # as ops.group_blocks makes them
    block_format: int  # its number in GGUF
    num_rows: int


@dataclass(frozen=True)
class BlockMatrix:
    """[num_outputs, num_inputs], one part below the other: files may store k and v, say, in different formats."""

    parts: tuple[BlockRows, ...]
    num_inputs: int
    activation_bits: int  # that activations are rounded to for the products: 8, 16, or 32 for not at all

    @property
    def shape(self) -> torch.Size:
        return torch.Size((sum(part.num_rows for part in self.parts), self.num_inputs))

    @property
    def device(self) -> torch.device:
        return self.parts[0].groups.device

    @property
    def num_bytes(self) -> int:
        return sum(part.groups.numel() for part in self.parts)

    @property
    def format_name(self) -> str:
        """As GGUF calls it: Q4_1, or Q4_K+Q6_K."""
        return "+".join(dict.fromkeys(ops.BLOCK_FORMATS[part.block_format].name for part in self.parts))

    def linear(self, x: Tensor, bias: Tensor | None) -> Tensor:
        """``x @ W.T + bias``; x: [T, num_inputs] float32 -> [T, num_outputs] float32."""
        if len(self.parts) == 1:
            part = self.parts[0]
            return ops.linear_blocks(x, part.groups, part.block_format, part.num_rows, bias, self.activation_bits)
        rows = [part.num_rows for part in self.parts]
        biases = [None] * len(rows) if bias is None else torch.split(bias, rows)
        return torch.cat(
            [
                ops.linear_blocks(x, part.groups, part.block_format, part.num_rows, part_bias, self.activation_bits)
                for part, part_bias in zip(self.parts, biases, strict=True)
            ],
            dim=1,
        )

    def gated_linear(self, x: Tensor, bias: Tensor | None, activation: str) -> Tensor:
        """``activation(gate @ x) * (up @ x)`` of gate above up; x: [T, num_inputs] float32 -> [T, I] float32."""
        if len(self.parts) > 1:  # gate and up in different formats
            return ops.activate_and_mul(self.linear(x, bias), activation)
        (part,) = self.parts
        inner_size, bits = part.num_rows // 2, self.activation_bits
        return ops.gated_linear_blocks(x, part.groups, part.block_format, inner_size, activation, bias, bits)

    def rows(self, row_ids: Tensor) -> Tensor:
        """The rows of a matrix of one part, dequantised. row_ids: [R] int64 -> [R, num_inputs] float32."""
        (part,) = self.parts
        return ops.dequantise_rows(part.groups, part.block_format, part.num_rows, self.num_inputs, row_ids)


Matrix = Tensor | BlockMatrix
