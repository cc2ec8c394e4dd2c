"""From measured times to the table that the launch code reads."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from benchmarks import kernel_choice

ROOT = Path(__file__).parents[2]


def row(op: str, head_size: int, size: int, kernel: str, microseconds: float) -> dict:
    return {"op": op, "head_size": head_size, "size": size, "kernel": kernel, "microseconds": microseconds}


def test_the_fastest_is_taken_and_neighbours_that_agree_are_one():
    rows = [
        *[row("prefill", 128, 512, kernel, time) for kernel, time in (("mma", 5.0), ("async", 8.0), ("tensor", 9.0))],
        *[row("prefill", 128, 2048, kernel, time) for kernel, time in (("mma", 90.0), ("tensor", 50.0))],
        *[row("prefill", 128, 8192, kernel, time) for kernel, time in (("mma", 900.0), ("tensor", 500.0))],
        *[row("decode", 64, 8, kernel, time) for kernel, time in (("async", 3.0), ("tensor", 4.0))],
    ]
    assert kernel_choice.fastest(rows) == {
        "prefill": [(128, 512, "mma"), (128, 2048, "tensor")],
        "decode": [(64, 8, "async")],
    }


def test_a_difference_that_two_runs_could_make_leaves_the_default():
    rows = [row("decode", 64, 8, "async", 99.0), row("decode", 64, 8, "tensor", 100.0)]
    assert kernel_choice.fastest(rows)["decode"] == [(64, 8, "tensor")]


def test_contexts_of_one_size_count_together():
    rows = [
        *[row("decode", 64, 8, "async", time) for time in (10.0, 100.0)],
        *[row("decode", 64, 8, "tensor", time) for time in (20.0, 50.0)],
    ]
    assert kernel_choice.fastest(rows)["decode"] == [(64, 8, "tensor")]


def test_rows_that_name_no_kernel_choose_nothing(tmp_path):
    path = tmp_path / "measured_kernels.h"
    assert "no choice" in kernel_choice.record([row("", 0, 0, "", 1.0)], path)
    assert not path.exists()


CHECK = """
#include "csrc/cuda/attention/kernel_choice.h"
#include "measured_kernels.h"
using namespace cudaprefill::cuda;
using P = PrefillKernel;
constexpr P prefill(int head_size, int64_t size) {{ return measured_kernel({table}, head_size, size, P::kBest); }}
static_assert(prefill(128, 1) == P::kMma && prefill(128, 512) == P::kMma && prefill(128, 2047) == P::kMma);
static_assert(prefill(128, 2048) == P::kTensorCopies && prefill(128, 100000) == P::kTensorCopies);
static_assert(prefill(64, 5) == P::kAsyncCopies && prefill(256, 5) == P::kBest);
static_assert(measured_kernel(kMeasuredDecode, 64, 1, DecodeKernel::kBest) == DecodeKernel::kBest);
int main() {{}}
"""


def test_what_is_written_compiles_and_is_read_by_size(tmp_path):
    compiler = shutil.which("g++") or shutil.which("c++")
    if not compiler:
        pytest.skip("there is no C++ compiler")
    rows = [
        row("prefill", 64, 1000, "async", 1.0),
        row("prefill", 128, 512, "mma", 1.0),
        row("prefill", 128, 2048, "tensor", 1.0),
    ]
    kernel_choice.record(rows, tmp_path / "measured_kernels.h")
    (tmp_path / "check.cc").write_text(CHECK.format(table="kMeasuredPrefill"))
    command = [compiler, "-std=c++20", "-fsyntax-only", f"-I{ROOT}/csrc/emu", f"-I{ROOT}", f"-I{tmp_path}", "check.cc"]
    subprocess.run(command, cwd=tmp_path, check=True)
