"""Calls of `add_lora`, as adverse as its contract allows, with what they must give."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from cudaprefill import ops
from cudaprefill.ops import LoraPart, lora_parts, lora_tiles


@dataclass(frozen=True)
class Part:
    """B [outputs, r] as PEFT has it, and where its outputs begin."""

    a: Tensor
    b: Tensor
    scale: float
    first_output: int


@dataclass(frozen=True)
class LoraCase:
    out: Tensor  # before the call
    x: Tensor
    rows: list[list[int]]  # of each adapter
    adapters: list[list[Part]]
    stored: list[list[LoraPart]]

    def run(self) -> Tensor:
        """`out` after the call, a copy: it is put back as it was."""
        before = self.out.clone()
        device = self.stored[0][0].a.device if self.stored and self.stored[0] else torch.device("cpu")
        parts, scales = lora_parts(self.stored, device, max(map(len, self.stored), default=0))
        starts = torch.tensor([0, *(len(rows) for rows in self.rows)]).cumsum(0)
        row_ids = torch.tensor([row for rows in self.rows for row in rows])
        ops.add_lora(self.out, self.x, row_ids.int(), starts.int(), parts, scales)
        after = self.out.clone()
        self.out.copy_(before)
        return after

    def compute(self, dtype: torch.dtype) -> Tensor:
        """The rows of adapters as the definition says, every step in `dtype`; then the others, unchanged."""
        out = self.out.to(dtype)
        for rows, adapter in zip(self.rows, self.adapters, strict=True):
            for part in adapter:
                if rows:
                    columns = slice(part.first_output, part.first_output + part.b.shape[0])
                    low = self.x[rows].to(dtype) @ part.a.to(dtype).T
                    out[rows, columns] += part.scale * (low @ part.b.to(dtype).T)
        return out

    @property
    def base_rows(self) -> list[int]:
        taken = {row for rows in self.rows for row in rows}
        return [row for row in range(self.out.shape[0]) if row not in taken]


def surrounded_by_nan(values: Tensor, device: str) -> Tensor:
    """The same values in memory that holds NaN before and after them."""
    edge = 64
    buffer = torch.full((values.numel() + 2 * edge,), math.nan, dtype=values.dtype, device=device)
    inside = buffer[edge:-edge].view(values.shape)
    inside.copy_(values)
    return inside


def lora_case(
    ranks: Sequence[Sequence[int]],
    rows: Sequence[int],
    *,
    num_inputs: int = 48,
    part_outputs: Sequence[int] = (96,),
    dtype: torch.dtype = torch.float32,
    weight_dtypes: Sequence[torch.dtype] | None = None,
    base_rows: int = 2,
    seed: int = 0,
    device: str = "cpu",
) -> LoraCase:
    """Adapters of the given ranks, one for each part of the outputs (0: none), with so many rows each, in any order.

    Memory around the matrices, outputs that only fill up a tile, base rows and the matrices of adapters without rows
    are NaN; x and out are views of wider rows.
    """
    generator = torch.Generator().manual_seed(seed)
    weight_dtypes = weight_dtypes or [dtype] * len(ranks)

    def random(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator)

    num_rows, num_outputs = sum(rows) + base_rows, sum(part_outputs)
    x = random(num_rows, num_inputs + 32).to(dtype)[:, 16 : 16 + num_inputs]
    out = random(num_rows, num_outputs + 32).to(dtype)[:, 16 : 16 + num_outputs]
    order = torch.randperm(num_rows, generator=generator).split([*rows, base_rows])
    x[order[-1]] = math.nan
    adapters, stored = [], []
    for of_adapter, count, weight_dtype in zip(ranks, rows, weight_dtypes, strict=True):
        parts, stored_parts, first = [], [], 0
        for rank, size in zip(of_adapter, part_outputs, strict=True):
            if rank:
                a = (random(rank, num_inputs) / num_inputs**0.5).to(weight_dtype)
                b = (random(size, rank) / rank**0.5).to(weight_dtype)
                if count == 0:
                    a[:], b[:] = math.nan, math.nan
                scale = 0.5 + random(1).abs().item()
                tiles = lora_tiles(b)
                tiles[-1, :, size - (tiles.shape[0] - 1) * ops.LORA_TILE :] = math.nan
                parts.append(Part(a, b, scale, first))
                stored_parts.append(
                    LoraPart(surrounded_by_nan(a, device), surrounded_by_nan(tiles, device), scale, first, size)
                )
            first += size
        adapters.append(parts)
        stored.append(stored_parts)
    return LoraCase(out, x, [part.tolist() for part in order[:-1]], adapters, stored)
