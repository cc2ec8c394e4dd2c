"""The paged KV memory of all layers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from cudaprefill.huge_pages import HUGE_PAGE, HugePages, populate
from cudaprefill.memory import memory_left

LEFT_FREE = 2**28  # bytes, for the activations of a step: the heap keeps as much of them (heap.py)


class LayerCache(NamedTuple):
    """The caches of one layer, as the ops take them."""

    k: Tensor  # [num_blocks, num_kv_heads, block_size, head_size]
    v: Tensor
    k_scale: Tensor | None = None  # [num_kv_heads] float32, of a float8 cache alone
    v_scale: Tensor | None = None


class KVCache:
    """K and V of every layer as one tensor, [layers, 2, num_blocks, num_kv_heads, block_size, head_size].

    The layout of a layer is HND, so one block of one head is contiguous: what one TMA box or one CPU tile wants.
    A float8 cache has `scales`, [layers, 2, num_kv_heads] float32 (kv_scales.py); without any given they are 1.
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
        scales: Tensor | None = None,
    ) -> None:
        shape = (num_layers, 2, num_blocks, num_kv_heads, block_size, head_size)
        if torch.device(device).type == "cpu":
            self.data = HugePages(HugePages.size_of(shape, dtype), "the KV cache").empty(shape, dtype)
        else:
            self.data = torch.empty(shape, dtype=dtype, device=device)
        self.scales: Tensor | None = None
        self.layers = [LayerCache(layer[0], layer[1]) for layer in self.data]
        if dtype == torch.float8_e4m3fn:
            self.scales = torch.ones((num_layers, 2, num_kv_heads), device=device) if scales is None else scales
            self.layers = [LayerCache(*layer, *of) for layer, of in zip(self.data, self.scales, strict=True)]
        self.num_blocks = num_blocks
        self.block_size = block_size

    def populate(self) -> None:
        """On a CPU: takes the memory from the system before it is needed.

        A block that is written for the first time waits for the system otherwise: for the clearing of pages, and in a
        virtual machine also for those that its host has yet to find. Where the host had given none, 0.3 GB/s, a prompt
        of 1,600 tokens waited for 0.14 s.
        """
        for _ in self.populate_in_pieces():
            pass

    def populate_in_pieces(self) -> Iterator[None]:
        """`populate`, a large page from one item to the next, in the order in which a pool takes blocks.

        A page takes 0.1 ms, or 7 where the host has to find it: for an engine that looks for requests in between.
        Ends before the memory does: the rest of the cache may never be needed.
        """
        if self.data.device.type != "cpu":
            return
        parts = self.data.flatten(0, 1)  # K or V of one layer each
        step = max(1, HUGE_PAGE // parts[0, 0].nbytes)
        for first in range(0, self.num_blocks, step):
            if memory_left() < LEFT_FREE + len(parts) * step * parts[0, 0].nbytes:
                return
            for part in parts:
                if not populate(part[first : first + step]):
                    return
                yield

    @staticmethod
    def block_bytes(num_layers: int, num_kv_heads: int, block_size: int, head_size: int, dtype: torch.dtype) -> int:
        """Bytes that one block takes across all layers, K and V together."""
        return num_layers * 2 * num_kv_heads * block_size * head_size * dtype.itemsize
