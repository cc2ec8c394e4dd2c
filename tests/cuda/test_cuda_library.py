"""The library of the CUDA kernels loads beside a torch with CUDA, though it was not linked to one."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from cudaprefill import ops

KERNELS = Path(ops.__file__).with_name("_ops_cuda.so")

# torch's own library, as torch loads it: its symbols are not there for others to see.
STAND_IN = "int aoti_torch_get_current_cuda_stream(int device, void** stream) { *stream = 0; return device; }"

LOAD = """
import ctypes, sys
from pathlib import Path
import torch
from cudaprefill import ops
kernels, torch_cuda = map(Path, sys.argv[1:])
ctypes.CDLL(str(torch_cuda))
ops.load_cuda_kernels(kernels, torch_cuda)
print(torch._C._dispatch_has_kernel_for_dispatch_key("cudaprefill::write_kv", "CUDA"))
"""


@pytest.mark.skipif(not KERNELS.exists(), reason="there is no nvcc: the CUDA kernels are not built")
def test_the_kernels_find_the_stream_of_a_torch_that_they_were_not_linked_to(tmp_path):
    compiler = shutil.which("cc")
    if not compiler:
        pytest.skip("there is no C compiler")
    source, torch_cuda = tmp_path / "stand_in.c", tmp_path / "libtorch_cuda.so"
    source.write_text(STAND_IN)
    subprocess.run([compiler, "-shared", "-fPIC", source, "-o", torch_cuda], check=True)
    loaded = subprocess.run(
        [sys.executable, "-c", LOAD, KERNELS, torch_cuda], capture_output=True, text=True, check=True
    )
    assert loaded.stdout.split() == ["True"]
