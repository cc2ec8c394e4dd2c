"""Which rows of a step use which LoRA adapter.

    schedule:  decodes a, b, a, base | chunk of b, 3 tokens | chunk of base, 2 tokens
    rows:              0  1  2  3      4  5  6                7  8
    row_ids:   0 2 | 1 4 5 6           in the order of the adapters; those of base are nowhere
    row_starts: 0    2         6

and the same among the rows that are sampled: here 0 1 2 3, and 4 if the chunk of b ends its prompt.

The tables of matrices are made anew when an adapter comes that they do not name, the rows when a step has others than
the step before: while the same requests decode on, a step costs nothing here.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from torch import Tensor

from cudaprefill import ops
from cudaprefill.adapters.lora_weights import NUM_PARTS
from cudaprefill.engine.device_tensor import device_tensor
from cudaprefill.models.linear import Linear

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from cudaprefill.adapters.lora_weights import LoraWeights
    from cudaprefill.engine.batch import Batch
    from cudaprefill.engine.request_queue import RequestRows
    from cudaprefill.engine.schedule import Schedule
    from cudaprefill.models.block_matrix import Matrix
    from cudaprefill.models.weights import LayerWeights

_RowsOf = Mapping["LoraWeights", "list[NDArray[np.int32]]"]

# Adapters without rows that stay in the tables in case they get some again.
_MAX_IDLE = 32


class LoraTables:
    """`parts` and `scales` of `add_lora` for each fused matrix of each layer.

    They name memory by address and keep no adapter alive: the requests of a step do, as long as it runs.
    """

    def __init__(self, adapters: Sequence[LoraWeights], device: torch.device) -> None:
        self.places = weakref.WeakKeyDictionary({adapter: place for place, adapter in enumerate(adapters)})
        self.num_adapters = len(adapters)
        self._by_layer: dict[str, list[tuple[Tensor, Tensor] | None]] = {}
        for matrix in NUM_PARTS:
            parts = torch.stack([adapter.parts[matrix] for adapter in adapters], dim=1)
            scales = torch.stack([adapter.scales[matrix] for adapter in adapters], dim=1)
            used = parts.flatten(1).any(dim=1).tolist()
            pairs = zip(used, parts.to(device), scales.to(device), strict=True)
            self._by_layer[matrix] = [(parts, scales) if any_ else None for any_, parts, scales in pairs]
        self._layers: Sequence[LayerWeights] = ()
        self._by_matrix: dict[int, tuple[Tensor, Tensor]] = {}

    def by_matrix(self, layers: Sequence[LayerWeights]) -> Mapping[int, tuple[Tensor, Tensor]]:
        """The tables of those of a model's matrices that any adapter adds to, by the identity of the matrix."""
        if layers is not self._layers:
            self._layers = layers
            self._by_matrix = {
                id(getattr(layer, matrix)): table
                for matrix, tables in self._by_layer.items()
                for layer, table in zip(layers, tables, strict=True)
                if table is not None
            }
        return self._by_matrix


class LoraRows(NamedTuple):
    """Which rows of a matrix use which adapter."""

    row_ids: Tensor  # [rows] int32
    row_starts: Tensor  # [tables.num_adapters + 1] int32


@dataclass(frozen=True)
class LoraBatch:
    """The rows of one step's adapters."""

    tables: LoraTables
    rows: LoraRows  # of all T
    sampled: LoraRows  # of the R that are sampled, counted among themselves

    def linear_with(self, linear: Linear, layers: Sequence[LayerWeights], sampled_only: bool = False) -> Linear:
        """`linear`, followed by what the adapters add to it; `layers` are those of the model it is used for.

        For x of all rows of the batch, or of those that are sampled.
        """
        return LinearWithLora(linear, self.tables.by_matrix(layers), self.sampled if sampled_only else self.rows)


class LinearWithLora(Linear):
    """A linear layer, and what the adapters of some rows add to it."""

    def __init__(self, linear: Linear, tables: Mapping[int, tuple[Tensor, Tensor]], rows: LoraRows) -> None:
        """`tables` are `parts` and `scales` of `add_lora` by the identity of the matrix."""
        self._linear = linear
        self._tables = tables
        self._rows = rows

    def __call__(self, x: Tensor, weight: Matrix, bias: Tensor | None) -> Tensor:
        out = self._linear(x, weight, bias)
        table = self._tables.get(id(weight))
        if table is not None:
            ops.add_lora(out, x, *self._rows, *table)
        return out

    def gated(self, x: Tensor, gate_up: Matrix, bias: Tensor | None, activation: str) -> Tensor:
        """What adapters add to gate and up comes before the activation, so then the two cannot be one op."""
        gated = super().gated if id(gate_up) in self._tables else self._linear.gated
        return gated(x, gate_up, bias, activation)


class LoraBatches:
    """Makes the `LoraBatch` of each step, from that of the step before where it can."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._tables: LoraTables | None = None
        self._decodes: weakref.ref[RequestRows] | None = None
        self._decode_rows: list[tuple[weakref.ref[LoraWeights], NDArray[np.int32]]] = []
        self._decode_batch: LoraBatch | None = None

    def with_lora_rows(self, batch: Batch, schedule: Schedule) -> Batch:
        """The batch of a step, with the rows of its adapters. Most steps have none."""
        if self._decodes is None or self._decodes() is not schedule.decodes:
            self._take_decodes(schedule.decodes)
        lora = self._with_chunks(schedule) if schedule.chunks else self._decode_batch
        return batch if lora is None else replace(batch, lora=lora)

    def _take_decodes(self, decodes: RequestRows) -> None:
        rows: dict[LoraWeights, list[int]] = {}
        for row, request in enumerate(decodes.requests):
            if request.adapter is not None and request.adapter.lora is not None:
                rows.setdefault(request.adapter.lora, []).append(row)
        arrays = {adapter: np.array(of_adapter, np.int32) for adapter, of_adapter in rows.items()}
        self._decodes = weakref.ref(decodes)
        self._decode_rows = [(weakref.ref(adapter), array) for adapter, array in arrays.items()]
        rows_of = {adapter: [array] for adapter, array in arrays.items()}
        self._decode_batch = self._batch(rows_of, sampled=rows_of)

    def _with_chunks(self, schedule: Schedule) -> LoraBatch | None:
        rows: dict[LoraWeights, list[NDArray[np.int32]]] = {}
        sampled: dict[LoraWeights, list[NDArray[np.int32]]] = {}
        for reference, array in self._decode_rows:
            adapter = reference()
            assert adapter is not None  # its requests are in the schedule
            rows[adapter], sampled[adapter] = [array], [array]
        row = num_sampled = len(schedule.decodes.requests)
        for chunk in schedule.chunks:
            if chunk.request.adapter is not None and chunk.request.adapter.lora is not None:
                lora = chunk.request.adapter.lora
                rows.setdefault(lora, []).append(np.arange(row, row + chunk.length, dtype=np.int32))
                if chunk.is_last:
                    sampled.setdefault(lora, []).append(np.array([num_sampled], np.int32))
            row += chunk.length
            num_sampled += chunk.is_last
        return self._batch(rows, sampled)

    def _batch(self, rows: _RowsOf, sampled: _RowsOf) -> LoraBatch | None:
        if not rows:
            return None
        tables = self._tables_for(rows)
        return LoraBatch(tables, self._lora_rows(tables, rows), self._lora_rows(tables, sampled))

    def _lora_rows(self, tables: LoraTables, rows: _RowsOf) -> LoraRows:
        by_place = sorted((tables.places[adapter], arrays) for adapter, arrays in rows.items())
        counts = np.zeros(tables.num_adapters, np.int32)
        for place, arrays in by_place:
            counts[place] = sum(map(len, arrays))
        row_ids = np.concatenate([np.empty(0, np.int32), *(array for _, arrays in by_place for array in arrays)])
        row_starts = np.concatenate(([0], counts.cumsum()))
        return LoraRows(
            device_tensor(row_ids, torch.int32, self._device), device_tensor(row_starts, torch.int32, self._device)
        )

    def _tables_for(self, adapters: Iterable[LoraWeights]) -> LoraTables:
        wanted = list(adapters)
        known = [] if self._tables is None else list(self._tables.places)
        if self._tables is None or not set(wanted) <= set(known):
            idle = [adapter for adapter in known if adapter not in set(wanted)]
            self._tables = LoraTables([*wanted, *idle[:_MAX_IDLE]], self._device)
        return self._tables
