"""Fixtures of the tests of the CUDA kernels."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.cuda.backends import GPU_BACKENDS, as_it_usually_is, backend_of_ops, emulation


@pytest.fixture(params=GPU_BACKENDS)
def backend(request: pytest.FixtureRequest) -> Iterator[str]:
    """The test runs once on the emulated device and once on a real one, where there is one."""
    with backend_of_ops(request.param):
        yield request.param


@pytest.fixture
def emulated() -> Iterator[object]:
    """The emulated device, for tests that set it up or read its counters."""
    with as_it_usually_is(emulation()) as device, backend_of_ops("emulated"):
        yield device
