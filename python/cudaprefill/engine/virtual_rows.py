"""What of a step does not come from token ids: its virtual tokens.

adapters/virtual_tokens.py says what these are.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import torch

from cudaprefill.engine.batch import EmbeddedRows, GivenKV
from cudaprefill.engine.device_tensor import device_tensor

if TYPE_CHECKING:
    from torch import Tensor

    from cudaprefill.engine.batch import Batch
    from cudaprefill.engine.schedule import Schedule


def with_virtual_rows(batch: Batch, schedule: Schedule) -> Batch:
    """The batch of a step, with what it needs of its requests' virtual tokens. Most steps need nothing."""
    device = batch.token_ids.device
    rows: list[int] = []
    values: list[Tensor] = []
    row = len(schedule.decodes.requests)
    for chunk in schedule.chunks:
        virtual = chunk.request.virtual_tokens
        length = min(chunk.length, virtual.num_tokens - chunk.start)
        if length > 0:
            assert virtual.embeddings is not None  # tokens whose KV is given are in no chunk
            start = chunk.start - virtual.num_given
            rows += range(row, row + length)
            values.append(virtual.embeddings[start : start + length])
        row += chunk.length
    given = []
    for tokens in schedule.given:
        keys_values = tokens.request.virtual_tokens.keys_values
        assert keys_values is not None
        given.append(GivenKV(keys_values[:, :, tokens.start :], device_tensor(tokens.slots, torch.int64, device)))
    if not rows and not given:
        return batch
    embedded = EmbeddedRows(device_tensor(rows, torch.int64, device), torch.cat(values)) if rows else None
    return replace(batch, embedded=embedded, given_kv=tuple(given))
