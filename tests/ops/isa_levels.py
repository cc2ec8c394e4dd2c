"""Running tests at instruction set levels below the machine's highest."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from cudaprefill import ops

ISA_LEVELS = ["plain", "avx2", "avx512"]


def lower_isa_levels() -> list[str]:
    """The levels below this machine's highest; none where this process was told which one to use."""
    if os.environ.get("CUDAPREFILL_CPU_ISA"):
        return []
    return ISA_LEVELS[: ISA_LEVELS.index(ops.cpu_isa())]


def run_at_isa_level(level: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Runs Python with arguments in a process of its own, for a process chooses its level once."""
    package_folder = str(Path(ops.__file__).parents[1])
    environment = {**os.environ, "CUDAPREFILL_CPU_ISA": level, "PYTHONPATH": package_folder}
    return subprocess.run([sys.executable, *arguments], env=environment, capture_output=True, text=True, check=False)


def passes_at_isa_level(level: str, *test_files: str) -> None:
    """Asserts that test files pass at a level."""
    run = run_at_isa_level(level, "-m", "pytest", "-q", "-x", "--no-header", *test_files)
    assert run.returncode == 0, run.stdout + run.stderr
