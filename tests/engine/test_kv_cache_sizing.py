"""What the KV cache leaves free on a GPU is enough for all that runs beside it, and no block more would fit.

A ledger stands in for the device: it knows who holds how many bytes, as a caching allocator and the driver do. On a CPU
the cache is as large as it is wanted, if the process may have so much.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cudaprefill.engine import kv_cache_sizing
from cudaprefill.engine.kv_cache_sizing import blocks_for_cpu, blocks_for_gpu

CUDA = torch.device("cuda")
MIB = 2**20


class Ledger:
    """Bytes of one device: those of other programs, those allocated, those that the allocator keeps for later."""

    def __init__(self, total: int, others: int) -> None:
        self.total = total
        self.others = others
        self.allocated = self.peak = self.reserved = 0

    @property
    def used(self) -> int:
        return self.others + self.reserved

    def allocate(self, size: int) -> None:
        self.allocated += size
        self.peak = max(self.peak, self.allocated)
        self.reserved = max(self.reserved, self.allocated)
        assert self.used <= self.total, "out of memory"

    def free(self, size: int) -> None:
        self.allocated -= size

    def install(self, monkeypatch: pytest.MonkeyPatch) -> None:
        functions: dict[str, Callable[[torch.device], object]] = {
            "synchronize": lambda device: None,
            "reset_peak_memory_stats": lambda device: setattr(self, "peak", self.allocated),
            "memory_allocated": lambda device: self.allocated,
            "max_memory_allocated": lambda device: self.peak,
            "mem_get_info": lambda device: (self.total - self.used, self.total),
        }
        for name, function in functions.items():
            monkeypatch.setattr(torch.cuda, name, function)
        monkeypatch.setattr(torch.cuda, "empty_cache", lambda: setattr(self, "reserved", self.allocated))


class Graphs:
    """Memory that goes when it does."""

    def __init__(self, ledger: Ledger, size: int) -> None:
        self.ledger, self.size = ledger, size
        ledger.allocate(size)

    def __del__(self) -> None:
        self.ledger.free(self.size)


class Gpu:
    """A device on which a model is loaded, and what runs on it."""

    def __init__(self, *, total: int, others: int, weights: int, activations: int, graphs: int) -> None:
        self.ledger = Ledger(total, others)
        self.activations, self.graph_bytes = activations, graphs
        self.ledger.allocate(weights)

    def run_largest_step(self) -> None:
        self.ledger.allocate(self.activations)
        self.ledger.free(self.activations)

    def capture(self) -> Graphs:
        self.run_smaller_step()
        return Graphs(self.ledger, self.graph_bytes)

    def run_smaller_step(self) -> None:
        self.ledger.allocate(self.activations // 2)
        self.ledger.free(self.activations // 2)

    def blocks(self, block_bytes: int, utilization: float, *, eager: bool = False) -> int:
        capture = None if eager else self.capture
        return blocks_for_gpu(block_bytes, utilization, CUDA, self.run_largest_step, capture)


SIZES = st.integers(0, 300 * MIB)


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    others=SIZES,
    weights=SIZES,
    activations=SIZES,
    graphs=SIZES,
    block_bytes=st.integers(1, 4 * MIB),
    utilization=st.floats(0.1, 1.0),
    eager=st.booleans(),
)
def test_all_that_runs_later_stays_within_the_share_and_fills_it(
    monkeypatch: pytest.MonkeyPatch,
    others: int,
    weights: int,
    activations: int,
    graphs: int,
    block_bytes: int,
    utilization: float,
    eager: bool,
) -> None:
    total = 2048 * MIB
    gpu = Gpu(total=total, others=others, weights=weights, activations=activations, graphs=graphs)
    gpu.ledger.install(monkeypatch)
    share = int(total * utilization)
    needed = others + weights + activations + (0 if eager else graphs)
    if needed + block_bytes > share:
        with pytest.raises(ValueError, match="but one block takes"):
            gpu.blocks(block_bytes, utilization, eager=eager)
        return
    num_blocks = gpu.blocks(block_bytes, utilization, eager=eager)
    assert gpu.ledger.allocated == weights  # what was measured is gone again
    assert share - block_bytes < needed + num_blocks * block_bytes <= share
    gpu.ledger.allocate(num_blocks * block_bytes)
    kept = None if eager else gpu.capture()
    gpu.run_largest_step()
    assert others + gpu.ledger.peak <= share
    del kept


def test_when_nothing_is_left_all_the_numbers_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = Gpu(total=1024 * MIB, others=24 * MIB, weights=500 * MIB, activations=200 * MIB, graphs=150 * MIB)
    gpu.ledger.install(monkeypatch)
    with pytest.raises(ValueError) as caught:  # noqa: PT011
        gpu.blocks(51 * MIB, 0.9)
    assert str(caught.value) == (
        "gpu_memory_utilization 0.9 of 1.0 GiB leaves 47.6 MiB for the KV cache beside 524.0 MiB in use, "
        "200.0 MiB of activations and 150.0 MiB of CUDA graphs, but one block takes 51.0 MiB"
    )
    assert gpu.blocks(47 * MIB, 0.9) == 1


@pytest.mark.parametrize("wanted", [None, 2**31])
def test_a_cache_larger_than_the_memory_is_refused_with_both_numbers(
    wanted: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kv_cache_sizing, "memory_limit", lambda: 2**31)
    assert blocks_for_cpu(2**10, wanted) == 2**21
    monkeypatch.setattr(kv_cache_sizing, "memory_limit", lambda: 2**30)
    with pytest.raises(ValueError, match=r"kv_cache_memory is 2.0 GiB, but this process may have 1.0 GiB"):
        blocks_for_cpu(2**10, wanted)
