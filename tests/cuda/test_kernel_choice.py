"""From measured times to the table that the launch code reads."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest
import torch

from benchmarks import kernel_choice

ROOT = Path(__file__).parents[2]


BFLOAT16, FLOAT8 = "bfloat16", "float8_e4m3fn"


def row(op: str, head_size: int, size: int, kernel: str, microseconds: float, kv_dtype: str = BFLOAT16) -> dict:
    return {
        "op": op,
        "kv_dtype": kv_dtype,
        "head_size": head_size,
        "size": size,
        "kernel": kernel,
        "microseconds": microseconds,
    }


def test_the_fastest_is_taken_and_neighbours_that_agree_are_one():
    rows = [
        *[row("prefill", 128, 512, kernel, time) for kernel, time in (("mma", 5.0), ("async", 8.0), ("tensor", 9.0))],
        *[row("prefill", 128, 2048, kernel, time) for kernel, time in (("mma", 90.0), ("tensor", 50.0))],
        *[row("prefill", 128, 8192, kernel, time) for kernel, time in (("mma", 900.0), ("tensor", 500.0))],
        *[row("decode", 64, 8, kernel, time) for kernel, time in (("async", 3.0), ("tensor", 4.0))],
    ]
    assert kernel_choice.fastest(rows) == {
        "prefill": [(BFLOAT16, 128, 512, "mma"), (BFLOAT16, 128, 2048, "tensor")],
        "decode": [(BFLOAT16, 64, 8, "async")],
    }


def test_caches_of_another_type_are_another_table():
    rows = [
        *[row("decode", 64, 8, kernel, time) for kernel, time in (("async", 3.0), ("tensor", 4.0))],
        *[row("decode", 64, 8, kernel, time, FLOAT8) for kernel, time in (("async", 4.0), ("tensor", 3.0))],
        *[row("decode", 64, 64, kernel, time) for kernel, time in (("async", 40.0), ("tensor", 30.0))],
    ]
    assert kernel_choice.fastest(rows)["decode"] == [
        (BFLOAT16, 64, 8, "async"),
        (BFLOAT16, 64, 64, "tensor"),
        (FLOAT8, 64, 8, "tensor"),
    ]


def test_the_default_over_float8_caches_is_the_kernel_that_they_have():
    rows = [row("prefill", 128, 512, kernel, time, FLOAT8) for kernel, time in (("mma", 99.0), ("async", 100.0))]
    assert kernel_choice.fastest(rows)["prefill"] == [(FLOAT8, 128, 512, "async")]


def test_the_benchmark_measures_over_caches_that_have_kernels():
    assert {kv_dtype for _, kv_dtype in kernel_choice.KERNELS} == set(kernel_choice.KV_BYTES)
    for name, num_bytes in kernel_choice.KV_BYTES.items():
        assert getattr(torch, name).itemsize == num_bytes


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"kv_dtype": None}, "a time of the kernel 'async' has no kv_dtype: measure it anew"),
        ({"kv_dtype": None, "size": None}, "a time of the kernel 'async' has no kv_dtype, no size: measure it anew"),
        ({"kv_dtype": "int4"}, "there is no decode kernel 'async' over caches of 'int4'"),
        ({"kernel": "mma"}, "there is no decode kernel 'mma' over caches of 'bfloat16'"),
        (
            {"op": "prefill", "kv_dtype": FLOAT8, "kernel": "tensor"},
            "no prefill kernel 'tensor' over caches of 'float8",
        ),
    ],
)
def test_results_of_another_version_are_refused_by_name_and_choose_nothing(
    tmp_path, capsys, monkeypatch, wrong, message
):
    changed = {**row("decode", 64, 8, "async", 1.0), **wrong}
    results, header = tmp_path / "attention_old.json", tmp_path / "measured_kernels.h"
    results.write_text(json.dumps({"rows": [{key: value for key, value in changed.items() if value is not None}]}))
    monkeypatch.setattr("sys.argv", ["kernel_choice", str(results), "--header", str(header)])
    with pytest.raises(SystemExit):
        kernel_choice.main()
    error = capsys.readouterr().err
    assert message in error
    assert str(results) in error
    assert not header.exists()


def test_a_difference_that_two_runs_could_make_leaves_the_default():
    rows = [row("decode", 64, 8, "async", 99.0), row("decode", 64, 8, "tensor", 100.0)]
    assert kernel_choice.fastest(rows)["decode"] == [(BFLOAT16, 64, 8, "tensor")]


def test_contexts_of_one_size_count_together():
    rows = [
        *[row("decode", 64, 8, "async", time) for time in (10.0, 100.0)],
        *[row("decode", 64, 8, "tensor", time) for time in (20.0, 50.0)],
    ]
    assert kernel_choice.fastest(rows)["decode"] == [(BFLOAT16, 64, 8, "tensor")]


def test_rows_that_name_no_kernel_choose_nothing(tmp_path):
    path = tmp_path / "measured_kernels.h"
    assert "no choice" in kernel_choice.record([row("", 0, 0, "", 1.0)], path)
    assert not path.exists()


CHECK = """
#include "csrc/cuda/attention/kernel_choice.h"
#include "measured_kernels.h"
using namespace cudaprefill;
using namespace cudaprefill::cuda;
using P = PrefillKernel;
constexpr P prefill(int head_size, int64_t size, DType kv_dtype = DType::kBFloat16) {
  return measured_kernel(kMeasuredPrefill, kv_dtype, head_size, size, P::kBest);
}
static_assert(prefill(128, 1) == P::kMma && prefill(128, 512) == P::kMma && prefill(128, 2047) == P::kMma);
static_assert(prefill(128, 2048) == P::kTensorCopies && prefill(128, 100000) == P::kTensorCopies);
static_assert(prefill(64, 5) == P::kAsyncCopies && prefill(256, 5) == P::kBest);
// What was measured in one type of 16 bits holds for both.
static_assert(prefill(64, 5, DType::kFloat16) == P::kAsyncCopies);
static_assert(prefill(128, 5, DType::kFloat8) == P::kAsyncCopies && prefill(128, 4096, DType::kFloat8) == P::kMma);
static_assert(prefill(64, 5, DType::kFloat8) == P::kBest);
static_assert(measured_kernel(kMeasuredDecode, DType::kFloat8, 64, 1, DecodeKernel::kBest) == DecodeKernel::kBest);
int main() {}
"""


def compiles(folder: Path) -> bool:
    """Whether CHECK does, with the table that is there."""
    compiler = shutil.which("g++") or shutil.which("c++")
    if not compiler:
        pytest.skip("there is no C++ compiler")
    (folder / "check.cc").write_text(CHECK)
    command = [compiler, "-std=c++20", "-fsyntax-only", f"-I{ROOT}/csrc/emu", f"-I{ROOT}", f"-I{folder}", "check.cc"]
    return subprocess.run(command, cwd=folder, capture_output=True, check=False).returncode == 0


def test_what_is_written_compiles_and_is_read_by_type_and_size(tmp_path):
    rows = [
        row("prefill", 64, 1000, "async", 1.0),
        row("prefill", 128, 512, "mma", 1.0),
        row("prefill", 128, 2048, "tensor", 1.0),
        row("prefill", 128, 512, "async", 1.0, FLOAT8),
        row("prefill", 128, 4096, "mma", 1.0, FLOAT8),
    ]
    header = tmp_path / "measured_kernels.h"
    kernel_choice.record(rows, header)
    assert compiles(tmp_path)
    # A table from before the types of caches were told is not taken for another.
    header.write_text(header.read_text().replace("{{2, ", "{{").replace(" {2, ", " {").replace(" {1, ", " {"))
    assert not compiles(tmp_path)
