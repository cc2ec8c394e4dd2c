"""Running tests at instruction set levels below the machine's highest."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from cudaprefill import ops

ISA_LEVELS = ["plain", "avx2", "avx2_vnni", "avx512", "avx512_vnni", "avx512_bf16"]
VNNI = "_vnni"  # of two levels that differ in this, the products of integers differ and nothing else
BF16 = "_bf16"  # the same of prefill attention over a bfloat16 cache


def lower_isa_levels() -> list[str]:
    """The levels below this machine's highest that it has; none where this process was told which one to use."""
    if os.environ.get("CUDAPREFILL_CPU_ISA"):
        return []
    has_avx_vnni = "avx_vnni" in Path("/proc/cpuinfo").read_text().split()
    below = ISA_LEVELS[: ISA_LEVELS.index(ops.cpu_isa())]
    return [level for level in below if level != "avx2_vnni" or has_avx_vnni]


def lower_float_levels() -> list[str]:
    """Of these the ones that differ in more than the products of integers, and prefill attention over bfloat16."""
    own = ops.cpu_isa().removesuffix(VNNI).removesuffix(BF16)
    return [level for level in lower_isa_levels() if not level.endswith(VNNI) and level != own]


def lower_attention_levels() -> list[str]:
    """Those at which prefill attention differs."""
    below = [ops.cpu_isa().removesuffix(BF16)] if ops.cpu_isa().endswith(BF16) else []
    return lower_float_levels() + [level for level in below if level in lower_isa_levels()]


def run_at_isa_level(level: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Runs Python with arguments in a process of its own, for a process chooses its level once."""
    package_folder = str(Path(ops.__file__).parents[1])
    environment = {**os.environ, "CUDAPREFILL_CPU_ISA": level, "PYTHONPATH": package_folder}
    return subprocess.run([sys.executable, *arguments], env=environment, capture_output=True, text=True, check=False)


def passes_at_isa_level(level: str, *test_files: str) -> None:
    """Asserts that test files pass at a level."""
    run = run_at_isa_level(level, "-m", "pytest", "-q", "-x", "--no-header", *test_files)
    assert run.returncode == 0, run.stdout + run.stderr
