"""The fixtures of the tests of the CUDA kernels."""

from tests.cuda.conftest import backend, emulated

__all__ = ["backend", "emulated"]
