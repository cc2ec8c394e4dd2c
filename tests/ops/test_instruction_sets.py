"""No function of the op library uses instructions above its level, whatever the linker made of equal functions."""

from __future__ import annotations

import platform
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from cudaprefill import ops

LIBRARY = Path(ops.__file__).with_name("_ops.so")
FUNCTION = re.compile(r"^[0-9a-f]+ <(.*)>:$")
INSTRUCTION = re.compile(r"^ +[0-9a-f]+:\t(\S+)(.*)$")
LEVEL = re.compile(r"4avx2|9avx2_vnni|6avx512|11avx512_vnni|11avx512_bf16")  # as the namespaces of isa.h are mangled
AVX512_OPERAND = re.compile(r"%zmm|%k[0-7]|%[xy]mm(1[6-9]|2\d|3[01])\b")

pytestmark = [
    pytest.mark.skipif(platform.machine() not in ("x86_64", "AMD64"), reason="only x86 has several levels"),
    pytest.mark.skipif(shutil.which("objdump") is None, reason="objdump is not installed"),
]


def instructions() -> Iterator[tuple[str, str, str]]:
    """(function, mnemonic, operands) of the whole library; the function's name is mangled."""
    listing = subprocess.run(
        ["objdump", "-d", "--no-show-raw-insn", str(LIBRARY)], capture_output=True, text=True, check=True
    ).stdout
    function = ""
    for line in listing.splitlines():
        if match := FUNCTION.match(line):
            function = match[1]
        elif match := INSTRUCTION.match(line):
            yield function, match[1], match[2]


def test_no_function_needs_more_than_its_level() -> None:
    # The compiler may reach for AVX only in the functions within the namespaces of the levels.
    too_high = {
        (function, f"{mnemonic}{operands}")
        for function, mnemonic, operands in instructions()
        if (
            mnemonic.startswith("v")
            and not {"6avx512", "11avx512_vnni", "11avx512_bf16"} & set(LEVEL.findall(function))
            and (not {"4avx2", "9avx2_vnni"} & set(LEVEL.findall(function)) or AVX512_OPERAND.search(operands))
        )
        or ("vpdp" in mnemonic and "_vnni" not in function)
        or ("bf16" in mnemonic and "11avx512_bf16" not in LEVEL.findall(function))
    }
    assert not too_high


def test_all_levels_are_in_the_library() -> None:
    functions = {function for function, _, _ in instructions()}
    for namespace in ("5plain", "4avx2", "9avx2_vnni", "6avx512", "11avx512_vnni", "11avx512_bf16"):
        assert any(namespace in function for function in functions), f"{namespace} was not built"
