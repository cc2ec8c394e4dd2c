"""Reads what the assembler says of every kernel and writes the tables of docs/kernels.md.

Fails, with the kernel's name, on a compiler warning, a register spill, an array in local memory, or serialized
products; and where the machine code of a Hopper kernel lacks what it is there for (machine_code.py).
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import machine_code

BEGIN = "<!-- resources: written by `make cuda` -->"
END = "<!-- end of resources -->"


@dataclass(frozen=True)
class Architecture:
    """What one multiprocessor has. Sizes in bytes; a block takes `reserved_shared` beside its own shared memory."""

    name: str
    registers: int = 65536
    threads: int = 2048
    blocks: int = 32
    shared: int = 0
    reserved_shared: int = 1024


ARCHITECTURES = {
    "sm_80": Architecture("sm_80 (A100)", shared=164 * 1024),
    "sm_90a": Architecture("sm_90a (H100)", shared=228 * 1024),
}
HOPPER = "_sm90_kernel"  # ends the names of the kernels that exist for Hopper alone
# Threads and bytes of dynamic shared memory of the kernels that have no head size.
SHAPES_WITHOUT_HEADS = {
    "write_kv_kernel": (128, 0),
    "write_float8_kv_kernel": (128, 0),
    "copy_blocks_kernel": (128, 0),
    "activate_and_mul_kernel": (256, 0),
    "rms_norm_kernel": (1024, 0),
    "rope_write_kv_kernel": (128, 0),
    "plain_attention_kernel": (128, 0),
    "plan_prefill_kernel": (256, 1200),
    "merge_decode_kernel": (128, 0),
    "merge_decode_sm90_kernel": (256, 0),
    "merge_prefill_kernel": (128, 0),
    "lora_shrink_kernel": (256, 32 * 1024),
    "lora_expand_kernel": (128, 16 * 1024),
    "plain_lora_shrink_kernel": (128, 0),
    "plain_lora_expand_kernel": (128, 0),
    "route_experts_kernel": (128, 0),
    "sort_experts_kernel": (256, 1060),
    "expert_product_kernel": (128, 32 * 1024),
    "plain_expert_kernel": (128, 0),
    "sum_experts_kernel": (256, 0),
}


@dataclass
class Kernel:
    """One kernel on one architecture."""

    name: str  # without namespaces and parameters
    architecture: str
    registers: int = 0
    stack: int = 0
    spills: int = 0


def demangle(names: list[str]) -> list[str]:
    """Readable names, short: no namespaces, no parameter lists."""
    output = subprocess.run(["c++filt"], input="\n".join(names), capture_output=True, text=True, check=True).stdout
    short = []
    for name in output.splitlines():
        name = re.sub(
            r"\(anonymous namespace\)::|_NV_ANON_NAMESPACE::|cudaprefill::|cuda::|_GLOBAL__N__\w+::", "", name
        )
        for number, copies in enumerate(("kTensor", "kAsync", "kWidening")):
            name = name.replace(f"(KvCopies){number}", copies)
        # The type of the caches only where it is not that of the activations.
        name = re.sub(r"<(\w+), (\d+), \1>", r"<\1, \2>", re.sub(r"<(\w+), \1>", r"<\1>", name))
        short.append(name.removeprefix("void ").split("(")[0])
    return short


def read_log(path: Path) -> tuple[list[Kernel], list[str]]:
    """The kernels of one log of `nvcc -Xptxas=-v`, and its warnings."""
    kernels: list[Kernel] = []
    warnings = []
    for line in path.read_text().splitlines():
        if match := re.search(r"Compiling entry function '(\w+)' for '(\w+)'", line):
            kernels.append(Kernel(match[1], match[2]))
        elif match := re.search(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads", line):
            kernels[-1].stack = int(match[1])
            kernels[-1].spills = int(match[2]) + int(match[3])
        elif match := re.search(r"Used (\d+) registers", line):
            kernels[-1].registers = int(match[1])
        elif "warning" in line.lower() or "serialized" in line.lower():
            warnings.append(f"{path.name}: {line.strip()}")
    for kernel, name in zip(kernels, demangle([kernel.name for kernel in kernels]), strict=True):
        kernel.name = name
    return kernels, warnings


def resident_blocks(kernel: Kernel, threads: int, shared: int) -> int:
    """How many thread blocks one multiprocessor holds at once."""
    device = ARCHITECTURES[kernel.architecture]
    registers_of_warp = -(-kernel.registers * 32 // 256) * 256  # handed out in units of 256 a warp
    warps = -(-threads // 32)
    return min(
        device.blocks,
        device.threads // threads,
        device.registers // (registers_of_warp * warps),
        device.shared // (shared + device.reserved_shared),
    )


Shapes = dict[tuple[str, int, str], tuple[int, int]]  # kernel, head size, type of the caches -> as below


def shape_of(kernel: Kernel, shapes: Shapes) -> tuple[int, int]:
    """Threads and bytes of dynamic shared memory of a block, at the largest launch."""
    base = kernel.name.split("<")[0]
    if base in SHAPES_WITHOUT_HEADS:
        return SHAPES_WITHOUT_HEADS[base]
    of_float8 = "Float8" in kernel.name or "kWidening" in kernel.name
    return shapes[base, head_size_of(kernel.name), "Float8" if of_float8 else "Element"]


def head_size_of(name: str) -> int:
    return int(re.findall(r", (\d+)", name)[0])


def hopper_tables(
    kernels: list[Kernel],
    codes: list[machine_code.MachineCode],
    shapes: Shapes,
    problems: list[str],
) -> str:
    """The tables of the kernels that exist for Hopper alone; what is wrong with them is added to `problems`."""
    registers = {kernel.name: kernel.registers for kernel in kernels}
    prefill, decode = [], []
    for name, code in zip(demangle([code.symbol for code in codes]), codes, strict=True):
        problems += machine_code.problems_of(name, code)
        if name.startswith("prefill"):
            prefill.append((name, code, *shape_of(Kernel(name, "sm_90a"), shapes)))
        else:
            kernel = Kernel(name, "sm_90a", registers[name])
            decode.append((name, code, *shape_of(kernel, shapes), kernel.registers))
    prefill.sort(key=lambda row: (*row[0].split(", ")[::2], head_size_of(row[0])))
    decode.sort(key=lambda row: (row[0].split(",")[0], head_size_of(row[0])))
    return f"{machine_code.prefill_table(prefill)}\n\n{machine_code.decode_table(decode)}"


def table(kernels: list[Kernel], shapes: Shapes, nvcc: str) -> str:
    """Markdown, one row a kernel and number format, one column group an architecture."""
    rows: dict[str, dict[str, Kernel]] = {}
    for kernel in kernels:
        rows.setdefault(kernel.name, {})[kernel.architecture] = kernel
    lines = [
        f"nvcc {nvcc}; blocks: thread blocks that a multiprocessor holds at once, warps: the warps of these.",
        "",
        "| kernel | threads | shared KiB | "
        + " | ".join(f"{device.name}: registers | blocks | warps" for device in ARCHITECTURES.values())
        + " |",
        "|---|---|---|" + "---|---|---|" * len(ARCHITECTURES),
    ]

    def key(name: str) -> tuple[str, str, int]:
        base, _, arguments = name.partition("<")
        numbers = re.findall(r"\d+", re.sub(r"B?Float\d+", "", arguments))
        return base, arguments.split(",")[0], int(numbers[0]) if numbers else 0

    for name in sorted(rows, key=key):
        threads, shared = shape_of(next(iter(rows[name].values())), shapes)
        cells = [f"`{name}`", str(threads), f"{shared / 1024:.1f}"]
        for architecture in ARCHITECTURES:
            kernel = rows[name][architecture]
            blocks = resident_blocks(kernel, threads, shared)
            cells += [str(kernel.registers), str(blocks), str(blocks * threads // 32)]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nvcc", required=True, help="version of the compiler, for the heading")
    parser.add_argument("--shapes", required=True, type=Path, help="the program that prints how kernels are launched")
    parser.add_argument("--page", required=True, type=Path, help="the page whose table is replaced")
    parser.add_argument("--cuobjdump", required=True, help="the disassembler")
    parser.add_argument(
        "--hopper-objects", required=True, nargs="+", type=Path, help="object files of the Hopper kernels"
    )
    parser.add_argument("--objects", required=True, nargs="+", type=Path, help="those of all other kernels")
    parser.add_argument("--logs", required=True, nargs="+", type=Path)
    arguments = parser.parse_args()

    kernels: list[Kernel] = []
    problems: list[str] = []
    for path in arguments.logs:
        more, warnings = read_log(path)
        kernels += more
        problems += warnings
    for kernel in kernels:
        if kernel.spills:
            problems.append(f"{kernel.name} for {kernel.architecture} spills {kernel.spills} bytes of registers")
        if kernel.stack:
            problems.append(f"{kernel.name} for {kernel.architecture} has {kernel.stack} bytes of local memory")
    shapes: Shapes = {}
    for line in subprocess.run([arguments.shapes], capture_output=True, text=True, check=True).stdout.splitlines():
        name, head_size, kv, threads, shared = line.split()
        shapes[name, int(head_size), kv] = (int(threads), int(shared))

    hopper = [kernel for kernel in kernels if HOPPER in kernel.name]
    others = [kernel for kernel in kernels if HOPPER not in kernel.name]
    codes = machine_code.disassemble(arguments.cuobjdump, arguments.objects)
    for name, code in zip(demangle([code.symbol for code in codes]), codes, strict=True):
        problems += machine_code.problems_of(name, code)
    codes = machine_code.disassemble(arguments.cuobjdump, arguments.hopper_objects)
    tables = f"{table(others, shapes, arguments.nvcc)}\n\n{hopper_tables(hopper, codes, shapes, problems)}"
    before, _, rest = arguments.page.read_text().partition(BEGIN)
    after = rest.partition(END)[2]
    arguments.page.write_text(f"{before}{BEGIN}\n{tables}\n{END}{after}")
    sys.stdout.write(f"{len(kernels)} kernels, {len(problems)} problems; {arguments.page} is up to date\n")
    sys.stderr.writelines(f"{problem}\n" for problem in problems)
    return 1 if problems else 0


if __name__ == "__main__":
    raise SystemExit(main())
