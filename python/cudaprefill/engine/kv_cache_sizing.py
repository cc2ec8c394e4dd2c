"""How many blocks the pool gets."""

from __future__ import annotations

import os
from collections.abc import Callable

import torch

from cudaprefill.config import format_bytes

DEFAULT_CPU_KV_CACHE_MEMORY = 2 * 2**30


def blocks_for_cpu(block_bytes: int, kv_cache_memory: int | None) -> int:
    """Blocks that `kv_cache_memory` bytes hold (None: 2 GiB).

    Raises ValueError with both numbers when not one block fits or the machine has less memory than that.
    """
    wanted = kv_cache_memory or DEFAULT_CPU_KV_CACHE_MEMORY
    present = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if wanted > present:
        raise ValueError(f"kv_cache_memory is {format_bytes(wanted)}, but this machine has {format_bytes(present)}")
    if wanted < block_bytes:
        raise ValueError(f"kv_cache_memory is {format_bytes(wanted)}, but one block takes {format_bytes(block_bytes)}")
    return wanted // block_bytes


def blocks_for_gpu(
    block_bytes: int, gpu_memory_utilization: float, device: torch.device, run_largest_step: Callable[[], None]
) -> int:
    """Blocks that fit beside the weights and the activations of the largest step, measured by running that step.

    Raises ValueError with the numbers when nothing is left for the KV cache.
    """
    torch.cuda.synchronize(device)
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats(device)
    held_before = torch.cuda.memory_allocated(device)
    run_largest_step()
    torch.cuda.synchronize(device)
    activations = torch.cuda.max_memory_allocated(device) - held_before
    torch.cuda.empty_cache()
    free, total = torch.cuda.mem_get_info(device)
    available = int(total * gpu_memory_utilization) - (total - free) - activations
    if available < block_bytes:
        raise ValueError(
            f"gpu_memory_utilization {gpu_memory_utilization} of {format_bytes(total)} leaves "
            f"{format_bytes(max(available, 0))} for the KV cache beside {format_bytes(total - free)} in use and "
            f"{format_bytes(activations)} of activations, but one block takes {format_bytes(block_bytes)}"
        )
    return available // block_bytes
