"""The paged KV memory of all layers."""

from __future__ import annotations

import torch
from torch import Tensor

from cudaprefill.huge_pages import HUGE_PAGE, HugePages, populate


class KVCache:
    """K and V of every layer as one tensor, [layers, 2, num_blocks, num_kv_heads, block_size, head_size].

    The layout of a layer is HND, so one block of one head is contiguous: what one TMA box or one CPU tile wants.
    """

    def __init__(
        self,
        num_layers: int,
        num_blocks: int,
        num_kv_heads: int,
        block_size: int,
        head_size: int,
        dtype: torch.dtype,
        device: torch.device | str = "cpu",
    ) -> None:
        shape = (num_layers, 2, num_blocks, num_kv_heads, block_size, head_size)
        if torch.device(device).type == "cpu":
            self.data = HugePages(HugePages.size_of(shape, dtype)).empty(shape, dtype)
        else:
            self.data = torch.empty(shape, dtype=dtype, device=device)
        self.layers: list[tuple[Tensor, Tensor]] = [(layer[0], layer[1]) for layer in self.data]
        self.num_blocks = num_blocks
        self.block_size = block_size

    def populate(self) -> None:
        """On a CPU: takes the memory from the system before it is needed, in the order in which a pool takes blocks.

        A block that is written for the first time waits for the system otherwise: for the clearing of pages, and in a
        virtual machine also for those that its host has yet to find. Where the host had given none, 0.3 GB/s, a prompt
        of 1,600 tokens waited for 0.14 s. May run in a thread beside an engine that uses the cache.
        """
        if self.data.device.type != "cpu":
            return
        parts = self.data.flatten(0, 1)  # K or V of one layer each
        step = max(1, HUGE_PAGE // parts[0, 0].nbytes)
        for first in range(0, self.num_blocks, step):
            for part in parts:
                if not populate(part[first : first + step]):
                    return

    @staticmethod
    def block_bytes(num_layers: int, num_kv_heads: int, block_size: int, head_size: int, dtype: torch.dtype) -> int:
        """Bytes that one block takes across all layers, K and V together."""
        return num_layers * 2 * num_kv_heads * block_size * head_size * dtype.itemsize
