"""The attention kernels over float8 caches on a real device, against float64; on a Hopper each of them by name."""

from __future__ import annotations

import pytest
import torch

from tests.cuda.backends import backend_of_ops
from tests.cuda.test_attention import HALF_TYPES, half_batch
from tests.ops.attention_calls import attend, decode, prefill
from tests.ops.attention_reference import FLOAT8, PagedBatch, assert_as_exact_as_torch, paged_batch

pytestmark = pytest.mark.gpu
HEAD_SIZES = (64, 80, 96, 128, 256)
# Around a page, the tiles of every head size, and what the warpgroups take at once of a narrow tile.
EDGES = [end + past for end in (16, 64, 80, 112, 128, 224, 336) for past in (-1, 0, 1)]


@pytest.fixture(params=["best", "the portable ones"])
def kernels(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if not torch.cuda.is_available():
        pytest.skip("there is no CUDA device")
    if request.param != "best":
        if torch.cuda.get_device_capability() != (9, 0):
            pytest.skip("they are the best ones here")
        monkeypatch.setenv("CUDAPREFILL_PREFILL_KERNEL", "mma")
        monkeypatch.setenv("CUDAPREFILL_DECODE_KERNEL", "async")


@pytest.fixture(autouse=True)
def on_the_device(kernels: None):
    with backend_of_ops("cuda"):
        yield


def float8_batch(*args, **options) -> PagedBatch:
    return half_batch(*args, **{"kv_dtype": FLOAT8, **options})


@pytest.mark.parametrize("dtype", HALF_TYPES)
@pytest.mark.parametrize("head_size", HEAD_SIZES)
def test_every_head_size(head_size, dtype):
    chunks = float8_batch([300, 3, 0, 700], [1300, 3, 17, 700], dtype, head_size=head_size)
    assert_as_exact_as_torch(prefill(chunks), chunks)
    decodes = float8_batch([1] * 5, [1, 16, 17, 0, 5000], dtype, head_size=head_size)
    assert_as_exact_as_torch(decode(decodes), decodes)


@pytest.mark.parametrize("window", [0, 1, 17, 112])
@pytest.mark.parametrize("head_size", HEAD_SIZES)
def test_contexts_that_end_around_a_page_or_a_tile(head_size, window):
    chunks = float8_batch([min(length, 70) for length in EDGES], EDGES, head_size=head_size)
    assert_as_exact_as_torch(prefill(chunks, window), chunks, window)
    decodes = float8_batch([1] * len(EDGES), EDGES, head_size=head_size)
    assert_as_exact_as_torch(decode(decodes, window), decodes, window)


@pytest.mark.parametrize("block_size", [16, 32, 64])
@pytest.mark.parametrize("head_size", HEAD_SIZES)
def test_every_block_size_in_a_step_of_decodes_and_chunks(head_size, block_size):
    step = float8_batch([1, 1, 1, 200, 3], [1000, 1, 17, 640, 3], head_size=head_size, block_size=block_size)
    assert_as_exact_as_torch(attend(step, 3), step)


@pytest.mark.parametrize("num_q_heads", [1, 3, 16, 17])
def test_every_group_size_with_a_soft_cap(num_q_heads):
    chunks = float8_batch([7, 130], [7, 400], num_q_heads=num_q_heads, num_kv_heads=1, spread=10.0)
    assert_as_exact_as_torch(prefill(chunks, softcap=5.0), chunks, softcap=5.0)
    decodes = float8_batch([1, 1], [5, 400], num_q_heads=num_q_heads, num_kv_heads=1, spread=10.0)
    assert_as_exact_as_torch(decode(decodes, softcap=5.0), decodes, softcap=5.0)


def test_float32_takes_the_plain_path():
    chunks = paged_batch([3, 0, 5], [20, 0, 37], kv_dtype=FLOAT8)
    assert_as_exact_as_torch(prefill(chunks, window=9), chunks, window=9)
