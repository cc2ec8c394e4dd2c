"""Runs the kernels of hopper_probes.cu, which keep or break one rule of Hopper's instructions each."""

from __future__ import annotations

import numpy as np
import pytest

probes = pytest.importorskip(
    "tests.emu._hopper_probes", reason="the emulation is not built (CUDAPREFILL_BUILD_TESTS=OFF)"
)

UNTOUCHED = 0xEEEEEEEE
SWIZZLE_BYTES = (0, 32, 64, 128)  # by the number of the mode
ROW_BYTES = 128  # of a line of all banks, by which the swizzle goes


def run(probe, choice=0, size=512):
    out = np.full(size, UNTOUCHED, dtype=np.uint32)
    probe(out, choice=choice)
    return out


def for_some_seed(call):
    """Runs the warps in several orders."""
    for seed in range(8):
        probes.set_seed(seed)
        call()


def place_of_chunk(swizzle_bytes: int, row: int, chunk: int) -> int:
    """Where chunk `chunk` of 16 bytes of a row as long as the swizzle spans lies within its row.

    The ISA draws the patterns: 128 bytes exchange eight chunks by each row, 64 bytes four chunks by every second row,
    32 bytes two chunks by every fourth row.
    """
    if swizzle_bytes == 0:
        return chunk
    rows_of_line = ROW_BYTES // swizzle_bytes
    return chunk ^ (row // rows_of_line % (swizzle_bytes // 16))
