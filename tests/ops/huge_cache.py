"""A cache whose offsets overrun 32 bits, without the memory for it."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

NUM_BLOCKS = 140_000
FAR_BLOCKS = [65535, 65536, 131071, 131072, 139999]
NEAR_BLOCKS = [0, 1, 2, 3, 4]


def huge_cache() -> Tensor:
    """[140,000, 8, 16, 128] bfloat16: 4.6 GB of addresses, of which only the pages that are touched become memory."""
    try:
        return torch.empty(NUM_BLOCKS, 8, 16, 128, dtype=torch.bfloat16)
    except RuntimeError as error:
        pytest.skip(f"this system does not give 4.6 GB of addresses without memory behind them: {error}")
