"""Each of the prefill kernels on a real Hopper device, by name, against float64."""

from __future__ import annotations

import pytest
import torch

from tests.cuda.backends import backend_of_ops
from tests.cuda.test_attention import HALF_TYPES, half_batch
from tests.ops.attention_calls import prefill
from tests.ops.attention_reference import assert_as_exact_as_torch

pytestmark = pytest.mark.gpu


@pytest.fixture(params=["mma", "tensor", "async"])
def kernel(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch):
    if not torch.cuda.is_available() or torch.cuda.get_device_capability() != (9, 0):
        pytest.skip("there is no device of compute capability 9.0")
    monkeypatch.setenv("CUDAPREFILL_PREFILL_KERNEL", request.param)
    with backend_of_ops("cuda"):
        yield request.param


@pytest.mark.parametrize("dtype", HALF_TYPES)
@pytest.mark.parametrize("head_size", [64, 128, 256])
def test_every_head_size(kernel, head_size, dtype):
    chunks = half_batch([300, 3, 0, 700], [1300, 3, 17, 700], dtype, head_size=head_size)
    assert_as_exact_as_torch(prefill(chunks), chunks)


@pytest.mark.parametrize("window", [0, 1, 17, 112])
@pytest.mark.parametrize("head_size", [64, 128, 256])
def test_contexts_that_end_around_a_page_or_a_tile(kernel, head_size, window):
    """Tiles of keys are 112, 128 and 80 long, and thrice or twice that of few rows at once."""
    lengths = [end + past for end in (16, 80, 112, 128, 160, 224, 256, 336) for past in (-1, 0, 1)]
    for most in (1, 70):  # few rows, and many
        chunks = half_batch([min(length, most) for length in lengths], lengths, head_size=head_size)
        assert_as_exact_as_torch(prefill(chunks, window), chunks, window)


@pytest.mark.parametrize("window", [1, 17, 200])
def test_a_window(kernel, window):
    chunks = half_batch([150, 1, 270], [930, 40, 270], head_size=128)
    assert_as_exact_as_torch(prefill(chunks, window), chunks, window)


def test_many_items_a_thread_block_and_split_tiles(kernel):
    many = half_batch([700] * 20, [900] * 20, head_size=128, num_q_heads=8, num_kv_heads=2)
    assert_as_exact_as_torch(prefill(many), many)
    split = half_batch([5], [20_000], head_size=128, num_q_heads=8, num_kv_heads=2)
    assert_as_exact_as_torch(prefill(split), split)


def test_soft_cap_and_larger_blocks(kernel):
    chunks = half_batch([300], [900], block_size=64, spread=30.0, head_size=128)
    assert_as_exact_as_torch(prefill(chunks, softcap=5.0), chunks, softcap=5.0)
