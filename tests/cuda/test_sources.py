"""Rules of csrc/cuda that a compiler does not check."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

CSRC = Path(__file__).parents[2] / "csrc"
PTX = CSRC / "cuda/ptx"
DECLARED = re.compile(
    r"^(?:template <.*>\n)?(?:__device__ __forceinline__|inline|void|T|[\w<>]+) [\w<> ]*?(\w+)\(", re.M
)


def test_assembly_is_in_ptx_alone():
    sources = [path for path in (CSRC / "cuda").rglob("*.cu*") if PTX not in path.parents]
    assert len(sources) > 10
    assert [path.name for path in sources if re.search(r"\basm\b", path.read_text())] == []


@pytest.mark.parametrize("header", sorted(path.name for path in PTX.glob("*.cuh")))
def test_every_ptx_header_has_its_emulation(header: str):
    functions = set(DECLARED.findall((PTX / header).read_text()))
    emulated = (CSRC / "emu/ptx" / header).read_text()
    assert functions
    assert {name for name in functions if not re.search(rf"\b{name}\(", emulated)} == set()


KERNEL = re.compile(r"__global__ void[^{;]*?(\w+)\((?:const __grid_constant__ )?\w+ \w+\) \{\n(.*?)\n}\n", re.S)


def test_every_kernel_enters_the_stream_before_it_touches_global_memory():
    bodies = {}
    for path in (CSRC / "cuda").rglob("*.cu*"):
        text = path.read_text()
        found = KERNEL.findall(text)
        assert len(found) == text.count("__global__ void"), path
        bodies.update(found)
    assert len(bodies) > 20
    for name, body in bodies.items():
        before, entered, _ = body.partition("  enter_stream();\n")
        assert entered, name
        assert not re.search(r"_global\(|load_vector|store_vector|copy_\w*async|^  (if .*)?return", before, re.M), name
