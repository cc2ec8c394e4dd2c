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

HEADER = Path(__file__).parents[1] / "csrc/cuda/attention/measured_kernels.h"
DEFAULT = "tensor"
MARGIN = 0.02
# Of each op: the C++ names of the kernels, by the names that the environment takes.
KERNELS = {
    "prefill": {"mma": "kMma", "async": "kAsyncCopies", "tensor": "kTensorCopies"},
    "decode": {"async": "kAsyncCopies", "tensor": "kTensorCopies"},
}


def fastest(rows: Iterable[Mapping]) -> dict[str, list[tuple[int, int, str]]]:
    """Of each op, (head size, size, kernel), sorted; neighbours that agree are one."""
    times: dict[tuple[str, int, int], dict[str, float]] = {}
    for row in rows:
        if row["kernel"]:
            by_kernel = times.setdefault((row["op"], row["head_size"], row["size"]), {})
            # Shapes of one size (contexts of different lengths) count together.
            by_kernel[row["kernel"]] = by_kernel.get(row["kernel"], 0.0) + row["microseconds"]
    chosen: dict[str, list[tuple[int, int, str]]] = {op: [] for op in KERNELS}
    for (op, head_size, size), by_kernel in sorted(times.items()):
        best = min(by_kernel, key=by_kernel.__getitem__)
        if DEFAULT in by_kernel and by_kernel[best] > (1 - MARGIN) * by_kernel[DEFAULT]:
            best = DEFAULT
        table = chosen[op]
        if not table or (table[-1][0], table[-1][2]) != (head_size, best):
            table.append((head_size, size, best))
    return chosen


def header(chosen: Mapping[str, list[tuple[int, int, str]]]) -> str:
    """The text of measured_kernels.h."""
    tables = []
    for op, entries in chosen.items():
        kind = f"{op.capitalize()}Kernel"
        rows = ", ".join(f"{{{head}, {size}, {kind}::{KERNELS[op][kernel]}}}" for head, size, kernel in entries)
        values = f"{{{{{rows}}}}}" if rows else "{}"
        declaration = f"constexpr std::array<MeasuredKernel<{kind}>, {len(entries)}> kMeasured{op.capitalize()}"
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
    print(record(json.loads(arguments.results.read_text())["rows"], arguments.header))


if __name__ == "__main__":
    main()
