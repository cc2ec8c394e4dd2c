"""What the machine gives at best, measured in the same run as what is compared with it."""

from __future__ import annotations

import ctypes
import os
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch

_INTEGER_PRODUCTS = Path(__file__).resolve().with_name("integer_products.c")


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


class IntegerProducts:
    """Dot products of bytes on several threads, from registers to registers: what no product of integers can exceed."""

    def __init__(self, cpu_isa: str, threads: int) -> None:
        """Raises ValueError for a level without such instructions; OSError, CalledProcessError without a C compiler."""
        bits = {"avx2_vnni": 256, "avx512_vnni": 512, "avx512_bf16": 512}.get(cpu_isa)
        if bits is None:
            raise ValueError(f"{cpu_isa} has no dot products of bytes")
        with tempfile.TemporaryDirectory() as folder:
            library = Path(folder) / "integer_products.so"
            compiler = os.environ.get("CC", "cc")
            subprocess.run(
                [compiler, "-O1", "-fPIC", "-shared", str(_INTEGER_PRODUCTS), "-o", str(library)], check=True
            )
            self._products = ctypes.CDLL(str(library))[f"products_of_{bits}_bits"]
        self._products.argtypes, self._products.restype = [ctypes.c_int64], ctypes.c_int64
        self._pool = ThreadPoolExecutor(threads)
        self._threads = threads

    def run(self) -> int:
        """Some milliseconds of them; how many multiplications and additions that were."""
        rounds = [1_000_000] * self._threads
        return sum(self._pool.map(self._products, rounds))


def fma_rate(threads: int) -> float:
    """Float32 operations a second of multiply-adds in registers (fma_peak.cc): what no product can exceed.

    Raises OSError or CalledProcessError where there is no C++ compiler that takes it.
    """
    with tempfile.TemporaryDirectory() as folder:
        program = Path(folder) / "fma_peak"
        source = Path(__file__).with_name("fma_peak.cc")
        compiler = os.environ.get("CXX", "c++")
        subprocess.run([compiler, "-O3", "-std=c++20", "-pthread", str(source), "-o", str(program)], check=True)
        return float(subprocess.run([program, str(threads)], check=True, capture_output=True, text=True).stdout)
