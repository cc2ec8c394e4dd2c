"""From the measurements of benchmarks/attention.py to the kernels that a Hopper device takes by itself.

    python -m benchmarks.kernel_choice benchmarks/results/attention_nvidia_h200.json

Writes csrc/cuda/attention/measured_kernels.h. The default stays unless another kernel is faster by more than `MARGIN`,
which is what two runs of the same kernel differ by.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

HEADER = Path(__file__).parents[1] / "csrc/cuda/attention/measured_kernels.h"
MARGIN = 0.02
# What the caches of a measurement hold, and how many bytes a number takes there. Of the types of 16 bits one is
# measured for both: the same bytes move, and products take the same time.
KV_BYTES = {"bfloat16": 2, "float8_e4m3fn": 1}
# The C++ names of the kernels, by the names that the environment takes.
CPP_NAMES = {"mma": "kMma", "async": "kAsyncCopies", "tensor": "kTensorCopies"}
# The kernels that there are of an op over such caches; the last one is the default.
KERNELS = {
    ("prefill", "bfloat16"): ("mma", "async", "tensor"),
    ("prefill", "float8_e4m3fn"): ("mma", "async"),
    ("decode", "bfloat16"): ("async", "tensor"),
    ("decode", "float8_e4m3fn"): ("async", "tensor"),
}
OPS = ("prefill", "decode")
FIELDS = ("op", "kv_dtype", "head_size", "size", "kernel", "microseconds")


class Choice(NamedTuple):
    """From a size on (new tokens, or requests), the kernel over caches of a type at a head size."""

    kv_dtype: str
    head_size: int
    least: int
    kernel: str


def fastest(rows: Iterable[Mapping]) -> dict[str, list[Choice]]:
    """Of each op, its choices, sorted; neighbours that agree are one.

    ValueError: a row does not tell all that the choice goes by, as those of older runs, or names a kernel that there is
    not.
    """
    times: dict[tuple[str, str, int, int], dict[str, float]] = {}
    for row in rows:
        if not row.get("kernel"):
            continue
        missing = [field for field in FIELDS if field not in row]
        if missing:
            raise ValueError(f"a time of the kernel {row['kernel']!r} has no {', no '.join(missing)}: measure it anew")
        op, kv_dtype, head_size, size, kernel, microseconds = (row[field] for field in FIELDS)
        if kernel not in KERNELS.get((op, kv_dtype), ()):
            raise ValueError(f"there is no {op} kernel {kernel!r} over caches of {kv_dtype!r}")
        by_kernel = times.setdefault((op, kv_dtype, head_size, size), {})
        # Shapes of one size (contexts of different lengths) count together.
        by_kernel[kernel] = by_kernel.get(kernel, 0.0) + microseconds
    chosen: dict[str, list[Choice]] = {op: [] for op in OPS}
    for (op, kv_dtype, head_size, size), by_kernel in sorted(times.items()):
        best = min(by_kernel, key=by_kernel.__getitem__)
        default = KERNELS[op, kv_dtype][-1]
        if default in by_kernel and by_kernel[best] > (1 - MARGIN) * by_kernel[default]:
            best = default
        table = chosen[op]
        choice = Choice(kv_dtype, head_size, size, best)
        if not table or table[-1]._replace(least=size) != choice:
            table.append(choice)
    return chosen


def header(chosen: Mapping[str, list[Choice]]) -> str:
    """The text of measured_kernels.h."""
    tables = []
    for op, choices in chosen.items():
        kind = f"{op.capitalize()}Kernel"
        rows = ", ".join(
            f"{{{KV_BYTES[kv_dtype]}, {head_size}, {least}, {kind}::{CPP_NAMES[kernel]}}}"
            for kv_dtype, head_size, least, kernel in choices
        )
        values = f"{{{{{rows}}}}}" if rows else "{}"
        declaration = f"constexpr std::array<MeasuredKernel<{kind}>, {len(choices)}> kMeasured{op.capitalize()}"
        tables.append(f"{declaration}{values};\n")
    before = HEADER.read_text().partition("constexpr")[0]
    return before + "\n".join(tables) + "// clang-format on\n\n}  // namespace cudaprefill::cuda\n"


def record(rows: Iterable[Mapping], path: Path) -> str:
    """Writes the header, where there is anything to choose from, and says what was done."""
    chosen = fastest(rows)
    if not any(chosen.values()):
        return "There are no times of kernels by name: no choice is recorded."
    path.write_text(header(chosen))
    return f"{path} holds the fastest kernels; the next build takes them."


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", type=Path, help="what benchmarks/attention.py has written")
    parser.add_argument("--header", type=Path, default=HEADER)
    arguments = parser.parse_args()
    try:
        print(record(json.loads(arguments.results.read_text())["rows"], arguments.header))
    except ValueError as error:
        parser.error(f"{arguments.results}: {error}")


if __name__ == "__main__":
    main()
