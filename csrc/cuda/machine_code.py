"""Reads the machine code for Hopper: which instructions there are, and what comes before the wait for the kernel ahead.

Of a kernel whose warps have parts it finds how many registers each part uses, too.
"""

from __future__ import annotations

import re
import subprocess
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

INSTALL = "it comes with the CUDA toolkit and with the packages nvidia-cuda-cuobjdump and nvidia-cuda-nvdisasm"


@dataclass
class MachineCode:
    """One kernel. A part begins where setmaxnreg sets its number of registers."""

    symbol: str
    instructions: Counter[str] = field(default_factory=Counter)
    granted: dict[str, int] = field(default_factory=dict)  # of "consumer" and "producer"
    highest: Counter[str] = field(default_factory=Counter)  # register of the part, counted from 1
    early: list[str] = field(default_factory=list)  # instructions that touch global memory, before the first ACQBULK


def disassemble(cuobjdump: str, objects: list[Path]) -> list[MachineCode]:
    """The kernels of the object files, as they are for sm_90a."""
    kernels = []
    for path in objects:
        try:
            command = [cuobjdump, "-sass", "-arch", "sm_90a", path]
            listing = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        except FileNotFoundError as error:
            raise SystemExit(f"cuobjdump is missing ({cuobjdump}): {INSTALL}") from error
        for body in listing.split("Function : ")[1:]:
            symbol, _, lines = body.partition("\n")
            kernels.append(read_listing(symbol.strip(), lines))
    return kernels


# griddepcontrol.wait is ACQBULK, griddepcontrol.launch_dependents is PREEXIT.
GLOBAL_MEMORY = {"LD", "ST", "LDG", "STG", "LDGSTS", "UTMALDG", "UTMASTG", "RED", "REDG", "ATOM", "ATOMG"}
INSTRUCTION = re.compile(r"/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+\s+)?([A-Z][\w.]*)\s*([^;]*);")


def read_listing(symbol: str, lines: str) -> MachineCode:
    """What is behind the last EXIT are the rare paths of all parts; it counts for none of them."""
    kernel = MachineCode(symbol)
    part = "start"
    instructions = INSTRUCTION.findall(lines)
    last_exit = max(i for i, (name, _) in enumerate(instructions) if name == "EXIT")
    for i, (name, operands) in enumerate(instructions):
        base = name.split(".")[0]
        kernel.instructions[base] += 1
        if base in GLOBAL_MEMORY and not kernel.instructions["ACQBULK"]:
            kernel.early.append(base)
        if base == "USETMAXREG":
            part = "producer" if "DEALLOC" in name else "consumer"
            kernel.granted[part] = int(re.findall(r"0x[0-9a-f]+", operands)[-1], 16)
        if i < last_exit:
            kernel.highest[part] = max([kernel.highest[part], *registers_after(name, operands)])
    return kernel


def registers_after(name: str, operands: str) -> list[int]:
    """For each register operand the number after its last register, of which only the first is written out."""
    product = re.search(r"HGMMA\.64x(\d+)x", name)
    data_width = 4 if ".128" in name or product else 2 if ".64" in name or ".WIDE" in name else 1
    found = []
    for place, operand in enumerate(operands.split(",")):
        for number, pair in re.findall(r"\bR(\d+)(\.64)?", operand):
            is_accumulator = product and (place == 0 or operand.strip() == operands.split(",")[0].strip())
            width = int(product[1]) // 2 if is_accumulator else 2 if pair else 1 if "[" in operand else data_width
            found.append(int(number) + width)
    return found


def expected_instructions(name: str) -> tuple[list[str], list[str]]:
    """What the machine code of a kernel is to have, and what not; nowhere is there to be local memory."""
    stream_order, local_memory = ["ACQBULK", "PREEXIT"], ["LDL", "STL"]
    if name.startswith("prefill_sm90_kernel"):
        copies, others = ("UTMALDG", "LDGSTS") if "kTensor" in name else ("LDGSTS", "UTMALDG")
        return [*stream_order, "HGMMA", "USETMAXREG", copies], [*local_memory, others]
    if name.startswith("decode_sm90_kernel"):
        return [*stream_order, "HMMA", "LDSM", "UTMALDG"], [*local_memory, "LDGSTS"]
    return stream_order, local_memory


def problems_of(name: str, code: MachineCode) -> list[str]:
    """What a kernel with this readable name ought to have and has not."""
    wanted, unwanted = expected_instructions(name)
    problems = [
        f"{name}: no {instruction} in the machine code" for instruction in wanted if not code.instructions[instruction]
    ]
    problems += [
        f"{name}: {code.instructions[instruction]} {instruction} in the machine code"
        for instruction in unwanted
        if code.instructions[instruction]
    ]
    problems += [f"{name}: {instruction} before ACQBULK" for instruction in sorted(set(code.early))]
    problems += [
        f"{name}: the {part} uses {code.highest[part]} registers and has {granted}"
        for part, granted in code.granted.items()
        if code.highest[part] > granted
    ]
    return problems


def decode_table(rows: list[tuple[str, MachineCode, int, int, int]]) -> str:
    """Markdown of (readable name, machine code, threads, bytes of shared memory, registers), one row a kernel."""
    lines = [
        "The Hopper decode and its merge, for sm_90a alone. The last columns count instructions of the machine code.",
        "",
        "| kernel | threads | shared KiB | registers | HMMA | LDSM | UTMALDG |",
        "|---|---|---|---|---|---|---|",
    ]
    for name, code, threads, shared, registers in rows:
        counts = " | ".join(str(code.instructions[i]) for i in ("HMMA", "LDSM", "UTMALDG"))
        lines.append(f"| `{name}` | {threads} | {shared / 1024:.1f} | {registers} | {counts} |")
    return "\n".join(lines)


def prefill_table(rows: list[tuple[str, MachineCode, int, int]]) -> str:
    """Markdown of (readable name, machine code, threads, bytes of shared memory), one row a kernel."""
    lines = [
        "The Hopper prefill, for sm_90a alone, one thread block a multiprocessor. Registers: how many a part uses of",
        "those that setmaxnreg gives it. The columns after them count instructions of the machine code.",
        "",
        "| kernel | threads | shared KiB | consumer | producer | HGMMA | UTMALDG | LDGSTS | USETMAXREG |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for name, code, threads, shared in rows:
        registers = [f"{code.highest[part]} of {code.granted[part]}" for part in ("consumer", "producer")]
        counts = [str(code.instructions[i]) for i in ("HGMMA", "UTMALDG", "LDGSTS", "USETMAXREG")]
        lines.append(f"| `{name}` | {threads} | {shared / 1024:.1f} | " + " | ".join(registers + counts) + " |")
    return "\n".join(lines)
