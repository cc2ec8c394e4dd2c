"""The Hopper prefill on the emulated device, with both producers: as exact as torch wherever the older kernel is."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch

pytest.importorskip("hypothesis")

from hypothesis import given
from hypothesis import strategies as st

from cudaprefill import ops
from tests.cuda import test_attention
from tests.cuda.hopper_device import hopper_device
from tests.cuda.test_attention import HALF_TYPES, half_batch
from tests.cuda.test_attention_properties import PROPERTY, REQUEST, SHAPE, batch_of
from tests.cuda.test_ops_on_cuda import SHARED
from tests.ops import test_prefill_attention
from tests.ops.attention_calls import prefill
from tests.ops.attention_reference import FLOAT8, POISONED_BLOCK, assert_as_exact_as_torch

HEAD_SIZES = (64, 128, 256)
PRODUCERS = st.sampled_from(["tensor", "async"])


@pytest.fixture(params=["tensor", "async"], autouse=True)
def hopper(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[object]:
    """Keys and values come by tensor copies or by cp.async."""
    with hopper_device(monkeypatch, test_prefill_attention, request.param) as device:
        yield device


# What tests/ops asks of any backend, as far as it is about prefill, in bfloat16 where a test does not say.
globals().update(
    {f"test_ops_{name}": getattr(test_prefill_attention, f"test_{name}") for name in SHARED[test_prefill_attention]}
)


@pytest.mark.parametrize("dtype", HALF_TYPES)
@pytest.mark.parametrize("head_size", HEAD_SIZES)
def test_every_head_size(hopper, head_size, dtype):
    chunks = half_batch([3, 0, 16, 33], [20, 0, 17, 133], dtype, head_size=head_size)
    assert_as_exact_as_torch(prefill(chunks), chunks)
    assert hopper.counters()["products"] > 0


@pytest.mark.parametrize("hopper", ["best"], indirect=True)
@pytest.mark.parametrize("dtype", HALF_TYPES)
@pytest.mark.parametrize("head_size", HEAD_SIZES)
@pytest.mark.parametrize("window", [0, 100])
def test_float8_is_widened_for_the_products(hopper, window, head_size, dtype):
    """At head size 256, where no memory is left to widen in, the older kernel serves. Every stage is used again."""
    hopper.set_num_multiprocessors(1)
    options = {"num_q_heads": 4, "num_kv_heads": 2, "head_size": head_size, "kv_dtype": FLOAT8}
    batch = half_batch([210, 3, 0, 70], [210, 420, 0, 500], dtype, **options)
    for seed in range(2):
        hopper.set_seed(seed)
        hopper.reset_counters()
        assert_as_exact_as_torch(prefill(batch, window), batch, window)
        counters = hopper.counters()
        assert (counters["products"] > 0) == (head_size <= 128)
        assert counters["tensor_copies"] == 0


@pytest.mark.parametrize("head_size", HEAD_SIZES)
def test_many_tiles_of_rows_and_keys(head_size):
    chunks = half_batch([210, 70], [210, 500], head_size=head_size, num_q_heads=2, num_kv_heads=1)
    assert_as_exact_as_torch(prefill(chunks), chunks)


@pytest.mark.parametrize("kv_dtype", [None, FLOAT8], ids=["16 bits", "float8"])
@pytest.mark.parametrize(("head_size", "window"), [(64, 0), (64, 112), (128, 0)])
def test_contexts_that_end_around_a_page_or_a_tile(head_size, window, kv_dtype):
    """Beside requests without new tokens, whose blocks may be anywhere; of few rows, and of many."""
    tile = {64: 112, 128: 128}[head_size]
    lengths = [end + past for end in (16, tile, 2 * tile, 3 * tile) for past in (-1, 0, 1)]
    new = [(1, 2, 70)[i % 3] if length > 70 else 1 for i, length in enumerate(lengths)]
    batch = half_batch([*new, 0, 0], [*lengths, 0, 300], kv_dtype=kv_dtype, head_size=head_size, num_q_heads=2)
    table = batch.block_table.clone()
    table[len(new) :] = POISONED_BLOCK
    batch = replace(batch, block_table=table)
    assert_as_exact_as_torch(prefill(batch, window), batch, window)


@pytest.mark.parametrize(("q_heads", "kv_heads"), [(24, 4), (28, 4), (40, 8), (6, 2), (71, 1), (4, 4)])
def test_every_group_size(q_heads, kv_heads):
    chunks = half_batch([7, 20], [7, 45], num_q_heads=q_heads, num_kv_heads=kv_heads, head_size=128)
    assert_as_exact_as_torch(prefill(chunks), chunks)


@pytest.mark.parametrize("block_size", [16, 32, 64])
def test_every_block_size(block_size):
    chunks = half_batch([40, 3], [130, 65], block_size=block_size, head_size=128)
    assert_as_exact_as_torch(prefill(chunks), chunks)


@pytest.mark.parametrize("head_size", HEAD_SIZES)
@pytest.mark.parametrize("window", [1, 16, 17, 100])
def test_a_window_hides_what_lies_before_it(window, head_size):
    chunks = half_batch([50, 1, 70], [330, 40, 70], head_size=head_size)
    assert_as_exact_as_torch(prefill(chunks, window), chunks, window)


def test_a_window_reads_neither_the_blocks_nor_the_slots_before_it():
    """What no row sees may be gone: blocks are poisoned, and slots of the block at the edge are NaN."""
    window, cached = 30, 200
    chunks = half_batch([20], [cached + 20], head_size=128)
    first_visible = cached - window + 1
    table = chunks.block_table.clone()
    block = int(table[0, first_visible // 16])
    for cache in (chunks.k_cache, chunks.v_cache):
        cache[block, :, : first_visible % 16] = math.nan
    table[0, : first_visible // 16] = 2**31 - 1
    chunks = replace(chunks, block_table=table)
    assert_as_exact_as_torch(prefill(chunks, window), chunks, window)


def test_a_soft_cap_bounds_the_scores():
    chunks = half_batch([40], [200], spread=30.0, head_size=128)
    assert_as_exact_as_torch(prefill(chunks, softcap=5.0), chunks, softcap=5.0)


def test_views_of_a_fused_row_and_rows_before_the_range():
    test_attention.test_views_of_a_fused_row_and_rows_before_the_range("emulated")


@pytest.mark.parametrize("interleaved", [False, True])
def test_caches_that_are_parts_of_one_tensor(hopper, interleaved):
    """Keys and values of a block beside one another, or slots that hold both: the maps follow the strides."""
    batch = half_batch([40], [200], head_size=128)
    if interleaved:
        both = torch.stack([batch.k_cache, batch.v_cache], dim=3)  # [N, Hkv, S, 2, D]
        batch = replace(batch, k_cache=both[:, :, :, 0], v_cache=both[:, :, :, 1])
    else:
        both = torch.stack([batch.k_cache, batch.v_cache], dim=1)  # [N, 2, Hkv, S, D]
        batch = replace(batch, k_cache=both[:, 0], v_cache=both[:, 1])
    assert_as_exact_as_torch(prefill(batch), batch)


def test_blocks_that_are_no_whole_number_of_heads_apart_come_by_cp_async(hopper):
    batch = half_batch([40], [100], head_size=128)
    room = torch.full((*batch.k_cache.shape[:1], 2 * 16 * 128 + 64), math.nan, dtype=torch.bfloat16)
    padded = room[:, : 2 * 16 * 128].unflatten(1, (2, 16, 128))
    padded.copy_(batch.k_cache)
    batch = replace(batch, k_cache=padded)
    assert_as_exact_as_torch(prefill(batch), batch)
    assert hopper.counters()["products"] > 0
    assert hopper.counters()["tensor_copies"] == 0


@pytest.mark.parametrize("multiprocessors", [1, 4, 16, 132])
def test_the_number_of_splits_does_not_change_the_result(hopper, multiprocessors):
    hopper.set_num_multiprocessors(multiprocessors)
    chunks = half_batch([5, 3, 40], [1200, 3, 300], num_q_heads=2, num_kv_heads=1, head_size=128)
    assert_as_exact_as_torch(prefill(chunks), chunks)


def test_the_order_of_warps_and_blocks_does_not_matter(hopper):
    chunks = half_batch([40, 150], [290, 150], head_size=128, num_q_heads=2, num_kv_heads=1)
    results = []
    for seed in range(4):
        hopper.set_seed(seed)
        results.append(prefill(chunks))
    assert all(torch.equal(result, results[0]) for result in results)


def test_both_producers_give_the_same_bits(hopper):
    chunks = half_batch([40, 150], [290, 150], head_size=128, num_q_heads=2, num_kv_heads=1)
    hopper.set_prefill_kernel("tensor")
    by_tensor_copies = prefill(chunks)
    hopper.set_prefill_kernel("async")
    assert torch.equal(prefill(chunks), by_tensor_copies)


def test_blocks_beyond_32_bit_offsets(hopper):
    """A cache of 140,000 blocks, 8 heads of 128: only the pages that are touched take memory."""
    cache = torch.empty(140_000, 8, 16, 128, dtype=torch.bfloat16)
    small = half_batch([20], [70], num_q_heads=8, num_kv_heads=8, head_size=128)
    blocks = small.block_table[0, :5].long()
    high = torch.tensor([65535, 65536, 131071, 131072, 139999])
    expected, out = torch.full_like(small.q, math.nan), torch.full_like(small.q, math.nan)
    arguments = (small.cu_seqlens_q, small.context_lens)
    ops.prefill_attention(small.q, small.k_cache, small.k_cache, small.block_table, *arguments, expected, small.scale)
    cache[high] = small.k_cache[blocks]
    ops.prefill_attention(small.q, cache, cache, high.int()[None], *arguments, out, small.scale)
    assert torch.equal(out, expected)


def test_a_prefill_of_65537_tokens():
    chunk = half_batch([65_537], [65_537], num_q_heads=1, num_kv_heads=1)
    assert torch.equal(prefill(chunk, window=1), chunk.values[0])


@pytest.mark.parametrize("head_size", [80, 96])
def test_other_head_sizes_take_the_older_kernel(hopper, head_size):
    chunks = half_batch([20], [70], head_size=head_size)
    assert_as_exact_as_torch(prefill(chunks), chunks)
    assert hopper.counters()["products"] == 0


def test_the_older_kernel_can_be_asked_for(hopper):
    hopper.set_prefill_kernel("mma")
    prefill(half_batch([20], [70]))
    assert hopper.counters()["products"] == 0


def test_tensor_copies_are_what_a_hopper_device_takes_by_itself(hopper):
    hopper.set_prefill_kernel("best")
    prefill(half_batch([20], [70]))
    assert hopper.counters()["tensor_copies"] > 0


def test_an_earlier_device_takes_the_older_kernel(hopper):
    hopper.set_compute_capability(80)
    prefill(half_batch([20], [70]))
    assert hopper.counters()["products"] == 0


def test_a_kernel_that_does_not_exist_is_named(hopper):
    with pytest.raises(ValueError, match="the prefill kernel must be best, mma, tensor or async, got fastest"):
        hopper.set_prefill_kernel("fastest")


@pytest.mark.parametrize("hopper", ["best"], indirect=True)
@PROPERTY
@given(
    requests=st.lists(REQUEST, min_size=1, max_size=4),
    **{
        **SHAPE,
        "head_size": st.sampled_from(HEAD_SIZES),
        "softcap": st.sampled_from([0.0, 0.0, 3.0]),
        "producer": PRODUCERS,
    },
)
def test_whatever_the_lengths(
    hopper, requests, heads, head_size, block_size, dtype, kv_dtype, window, softcap, producer, multiprocessors, seed
):
    hopper.set_prefill_kernel(producer)
    hopper.set_num_multiprocessors(multiprocessors)
    hopper.set_seed(seed)
    new = [new for new, _ in requests]
    batch = batch_of(
        new, [new + cached for new, cached in requests], heads, head_size, block_size, dtype, kv_dtype, seed
    )
    assert_as_exact_as_torch(prefill(batch, window, softcap), batch, window, softcap)
