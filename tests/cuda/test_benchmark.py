"""The benchmark of the kernels runs through and writes its report: small shapes, on the CPU where there is no GPU."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import torch

ROOT = Path(__file__).parents[2]


def test_a_tiny_run_reports_every_case(tmp_path: Path):
    device = "cuda" if torch.cuda.is_available() else "cpu"
    command = [sys.executable, "-m", "benchmarks.attention", "--tiny", "--device", device, "--results", str(tmp_path)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "python")}
    subprocess.run(command, cwd=ROOT, env=environment, check=True, capture_output=True)
    (page,) = tmp_path.glob("*.md")
    report = json.loads(page.with_suffix(".json").read_text())
    ours = [row["case"] for row in report["rows"] if row["implementation"] == "cudaprefill"]
    assert len(ours) == 18
    assert all(case in page.read_text() for case in ours)
