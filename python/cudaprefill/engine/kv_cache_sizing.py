"""How many blocks the pool gets."""

from __future__ import annotations

from collections.abc import Callable

import torch

from cudaprefill.config import format_bytes
from cudaprefill.memory import memory_limit

DEFAULT_CPU_KV_CACHE_MEMORY = 2 * 2**30


def blocks_for_cpu(block_bytes: int, kv_cache_memory: int | None) -> int:
    """Blocks that `kv_cache_memory` bytes hold (None: 2 GiB).

    Raises ValueError with both numbers when not one block fits or this process may not have so much memory.
    """
    wanted = kv_cache_memory or DEFAULT_CPU_KV_CACHE_MEMORY
    limit = memory_limit()
    if wanted > limit:
        raise ValueError(f"kv_cache_memory is {format_bytes(wanted)}, but this process may have {format_bytes(limit)}")
    if wanted < block_bytes:
        raise ValueError(f"kv_cache_memory is {format_bytes(wanted)}, but one block takes {format_bytes(block_bytes)}")
    return wanted // block_bytes


def blocks_for_gpu(
    block_bytes: int,
    gpu_memory_utilization: float,
    device: torch.device,
    run_largest_step: Callable[[], None],
    capture_graphs: Callable[[], object] | None,
) -> int:
    """Blocks that fit beside the weights, the activations of the largest step and the graphs of decode steps.

    These are measured by running that step, and by capturing the graphs, which go again: `capture_graphs` returns what
    keeps them alive; None: there will be none. They have memory of their own, which the largest step cannot use.
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
    graphs = 0 if capture_graphs is None else _memory_kept_by(capture_graphs, device)
    free, total = torch.cuda.mem_get_info(device)
    available = int(total * gpu_memory_utilization) - (total - free) - activations - graphs
    if available < block_bytes:
        raise ValueError(
            f"gpu_memory_utilization {gpu_memory_utilization} of {format_bytes(total)} leaves "
            f"{format_bytes(max(available, 0))} for the KV cache beside {format_bytes(total - free)} in use, "
            f"{format_bytes(activations)} of activations and {format_bytes(graphs)} of CUDA graphs, "
            f"but one block takes {format_bytes(block_bytes)}"
        )
    return available // block_bytes


def _memory_kept_by(make: Callable[[], object], device: torch.device) -> int:
    """Bytes of the device that what `make` returns takes while it lives, whoever allocated them."""
    free_before, _ = torch.cuda.mem_get_info(device)
    kept = make()
    torch.cuda.synchronize(device)
    torch.cuda.empty_cache()
    free_with, _ = torch.cuda.mem_get_info(device)
    del kept
    torch.cuda.synchronize(device)
    torch.cuda.empty_cache()
    return max(free_before - free_with, 0)
