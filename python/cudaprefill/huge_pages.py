"""Memory in large pages, for what a CPU streams through in every step.

A decode step reads all weights once. With pages of 4 KiB the walk through the page tables takes a tenth of that time;
with pages of 2 MiB it vanishes. Only these tensors ask for them: for short-lived activations the kernel would clear
2 MiB again and again.
"""

from __future__ import annotations

import ctypes
import math
import mmap
from collections.abc import Sequence

import torch
from torch import Tensor

from cudaprefill.config import format_bytes

HUGE_PAGE = 2**21
_CACHE_LINE = 64
_MADV_POPULATE_WRITE = 23  # Linux 5.14; Python has no name for it yet


class HugePages:
    """One anonymous mapping that tensors are cut from. It lives as long as the last of them.

    Where the system grants no large pages it is ordinary memory.
    """

    def __init__(self, num_bytes: int, use: str) -> None:
        """Raises OSError with the number of bytes and their use if the system refuses them."""
        try:
            self._mapping = mmap.mmap(-1, max(num_bytes, 1), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        except OSError as error:
            raise OSError(f"the system refuses {format_bytes(num_bytes)} for {use}: {error.strerror}") from None
        if hasattr(mmap, "MADV_HUGEPAGE"):
            self._mapping.madvise(mmap.MADV_HUGEPAGE)
        self._size = num_bytes
        self._used = 0

    @staticmethod
    def size_of(shape: Sequence[int], dtype: torch.dtype) -> int:
        """Bytes that `empty` takes for such a tensor."""
        num_bytes = math.prod(shape) * dtype.itemsize
        return -(-num_bytes // _CACHE_LINE) * _CACHE_LINE

    def empty(self, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        """A tensor that starts at a cache line. Raises MemoryError with both numbers when the mapping is used up."""
        size = self.size_of(shape, dtype)
        if self._used + size > self._size:
            raise MemoryError(f"a tensor of {size} bytes does not fit into the {self._size - self._used} that are left")
        if size == 0:
            return torch.empty(tuple(shape), dtype=dtype)
        start = self._used
        self._used += size
        return torch.frombuffer(self._mapping, dtype=dtype, count=math.prod(shape), offset=start).view(tuple(shape))


def populate(tensor: Tensor) -> bool:
    """Has the system hand over the pages of a contiguous CPU tensor now, not when each is first written to.

    What the tensor holds stays. False where the system cannot do that.
    """
    madvise = getattr(ctypes.CDLL(None, use_errno=True), "madvise", None)
    if madvise is None:
        return False
    first = tensor.data_ptr() // mmap.PAGESIZE * mmap.PAGESIZE
    size = tensor.data_ptr() + tensor.nbytes - first
    return bool(madvise(ctypes.c_void_p(first), ctypes.c_size_t(size), _MADV_POPULATE_WRITE) == 0)
