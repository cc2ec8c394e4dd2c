"""The Hopper prefill on the emulated device, with both producers: as exact as torch wherever the older kernel is."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.cuda.backends import backend_of_ops, emulation
from tests.cuda.test_attention import HALF_TYPES, half_batch, prefill
from tests.ops.attention_reference import assert_as_exact_as_torch

HEAD_SIZES = (64, 128, 256)


@pytest.fixture(params=["tensor", "async"])
def hopper(request: pytest.FixtureRequest) -> Iterator[object]:
    """A device of compute capability 9.0; keys and values come by tensor copies or by cp.async."""
    device = emulation()
    device.set_compute_capability(90)
    device.set_prefill_kernel(request.param)
    device.set_num_multiprocessors(2)
    device.reset_counters()
    with backend_of_ops("emulated"):
        yield device
    device.set_compute_capability(80)
    device.set_prefill_kernel("best")
    device.set_num_multiprocessors(4)
    device.set_seed(0)


@pytest.mark.parametrize("dtype", HALF_TYPES)
@pytest.mark.parametrize("head_size", HEAD_SIZES)
def test_every_head_size(hopper, head_size, dtype):
    chunks = half_batch([3, 0, 16, 33], [20, 0, 17, 133], dtype, head_size=head_size)
    assert_as_exact_as_torch(prefill(chunks), chunks)
    assert hopper.counters()["products"] > 0
