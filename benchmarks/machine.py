"""What the machine gives at best, measured in the same run as what is compared with it."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import torch


def median_seconds(function: Callable[[], object], repeats: int) -> float:
    """Median time of `function` after one call that is not counted."""
    function()
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        function()
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def read_bandwidth(num_bytes: int, repeats: int = 9) -> float:
    """Bytes a second at which all threads read `num_bytes` of memory, by torch's own sum of float32."""
    data = torch.ones(num_bytes // 4)
    return data.numel() * 4 / median_seconds(data.sum, repeats)


def gemm_rate(rows: int = 1600, inputs: int = 576, outputs: int = 3072, repeats: int = 9) -> float:
    """Floating-point operations a second of torch's float32 matrix product at the shape of the model's MLP."""
    x, weight = torch.randn(rows, inputs), torch.randn(outputs, inputs)
    return 2 * rows * inputs * outputs / median_seconds(lambda: torch.nn.functional.linear(x, weight), repeats)
