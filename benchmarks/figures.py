"""The figures of a benchmark as a file: every sample, so that a later run can tell a change from noise."""

from __future__ import annotations

import json
import os
import platform
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch


@dataclass(frozen=True)
class Figure:
    """`samples`: one of each repeat. One that is counted instead of timed has a single sample."""

    name: str
    unit: str
    samples: Sequence[float]
    more_is_better: bool = False

    @property
    def median(self) -> float:
        return statistics.median(self.samples)


def write_figures(path: Path, figures: Sequence[Figure], setting: Mapping[str, object] | None = None) -> None:
    content = {"setting": dict(setting or {}), "figures": [asdict(figure) for figure in figures]}
    path.write_text(json.dumps(content, indent=1) + "\n")


def read_figures(path: Path) -> list[Figure]:
    return [Figure(**figure) for figure in json.loads(path.read_text())["figures"]]


def machine() -> dict[str, Any]:
    """What figures are taken on."""
    lines = _cpuinfo()
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    flags = next((line for line in lines if line.startswith("flags")), "").split()
    return {
        "cpu": names[0] if names else platform.processor() or platform.machine(),
        "isa": [flag for flag in ("avx2", "avx512f", "avx512_vnni", "avx512_bf16", "amx_int8") if flag in flags],
        "threads": len(os.sched_getaffinity(0)),
        "torch": torch.__version__,
        "python": platform.python_version(),
        "load": os.getloadavg()[0],  # at the beginning: tells whether the machine was quiet
    }


def _cpuinfo() -> list[str]:
    try:
        return Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return []
