"""What the heap keeps; in a process of its own, for the setting is of the whole process."""

from __future__ import annotations

import platform
import subprocess
import sys

import pytest

COUNT_FAULTS = """
import ctypes, resource
from cudaprefill.heap import keep_freed_memory

libc = ctypes.CDLL(None)
libc.malloc.argtypes, libc.malloc.restype, libc.free.argtypes = [ctypes.c_size_t], ctypes.c_void_p, [ctypes.c_void_p]

def faults_of_a_layer():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    blocks = [libc.malloc(size << 20) for size in (6, 4, 20, 10, 4)]
    for block, size in zip(blocks, (6, 4, 20, 10, 4)):
        ctypes.memset(block, 1, size << 20)
    for block in blocks:
        libc.free(block)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

first = faults_of_a_layer()
keep_freed_memory()
faults_of_a_layer()
print(first, faults_of_a_layer())
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="a setting of glibc")
def test_activations_of_the_next_layer_find_the_memory_of_the_last_one() -> None:
    result = subprocess.run([sys.executable, "-c", COUNT_FAULTS], capture_output=True, text=True, check=True)
    first, later = map(int, result.stdout.split())
    assert first > 5000  # 44 MiB, 4 KiB a page
    assert later < 50
