"""The Hopper decode on the emulated device: as exact as torch wherever the older kernel is."""

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
from tests.cuda.test_attention_properties import PROPERTY, SHAPE, batch_of
from tests.cuda.test_ops_on_cuda import SHARED
from tests.ops import test_decode_attention
from tests.ops.attention_calls import decode
from tests.ops.attention_reference import FLOAT8, assert_as_exact_as_torch

HEAD_SIZES = (64, 128, 256)


@pytest.fixture(autouse=True)
def hopper(monkeypatch: pytest.MonkeyPatch) -> Iterator[object]:
    with hopper_device(monkeypatch, test_decode_attention) as device:
        yield device


def decodes_of(lengths, dtype=torch.bfloat16, **options):
    return half_batch([1] * len(lengths), lengths, dtype, **options)


# What tests/ops asks of any backend, as far as it is about decoding, in bfloat16 where a test does not say.
globals().update(
    {f"test_ops_{name}": getattr(test_decode_attention, f"test_{name}") for name in SHARED[test_decode_attention]}
)


@pytest.mark.parametrize("dtype", HALF_TYPES)
@pytest.mark.parametrize("head_size", HEAD_SIZES)
def test_every_head_size(hopper, head_size, dtype):
    batch = decodes_of([1, 16, 17, 700], dtype, head_size=head_size)
    assert_as_exact_as_torch(decode(batch), batch)
    assert hopper.counters()["tensor_copies"] > 0


@pytest.mark.parametrize("dtype", HALF_TYPES)
@pytest.mark.parametrize("head_size", HEAD_SIZES)
@pytest.mark.parametrize("window", [0, 700])
def test_float8_comes_by_tensor_copies(hopper, window, head_size, dtype):
    """Rows end within the share of a warp, and every stage is used again."""
    hopper.set_num_multiprocessors(1)
    options = {"num_q_heads": 4, "num_kv_heads": 2, "head_size": head_size, "block_size": 32, "kv_dtype": FLOAT8}
    batch = decodes_of([30, 1900, 0, 5, 1330], dtype, **options)
    assert_as_exact_as_torch(decode(batch, window), batch, window)
    assert hopper.counters()["tensor_copies"] > 2 * 8 * 6
    assert hopper.counters()["matrix_load_conflicts"] == 0


@pytest.mark.parametrize(("q_heads", "kv_heads"), [(24, 4), (28, 4), (40, 8), (6, 2), (71, 1), (4, 4)])
def test_every_group_size(q_heads, kv_heads):
    batch = decodes_of([5, 140], num_q_heads=q_heads, num_kv_heads=kv_heads, head_size=128)
    assert_as_exact_as_torch(decode(batch), batch)


@pytest.mark.parametrize("block_size", [16, 32, 64])
def test_every_block_size(block_size):
    batch = decodes_of([130, 65, 700], block_size=block_size, head_size=128)
    assert_as_exact_as_torch(decode(batch), batch)


@pytest.mark.parametrize("head_size", HEAD_SIZES)
@pytest.mark.parametrize("window", [1, 16, 17, 100])
def test_a_window_hides_what_lies_before_it(window, head_size):
    batch = decodes_of([3, 90, 131, 600], head_size=head_size)
    assert_as_exact_as_torch(decode(batch, window), batch, window)


def test_a_window_reads_neither_the_blocks_nor_the_slots_before_it():
    """What the query does not see may be gone: blocks are poisoned, and slots of the block at the edge are NaN."""
    window, length = 30, 200
    batch = decodes_of([length], head_size=128)
    first_visible = length - window
    table = batch.block_table.clone()
    block = int(table[0, first_visible // 16])
    for cache in (batch.k_cache, batch.v_cache):
        cache[block, :, : first_visible % 16] = math.nan
    table[0, : first_visible // 16] = 2**31 - 1
    batch = replace(batch, block_table=table)
    assert_as_exact_as_torch(decode(batch, window), batch, window)


def test_requests_without_keys_between_others_are_zero():
    lengths = [0, 0, 20, 0, 300, 0]
    batch = decodes_of(lengths, head_size=128)
    out = decode(batch)
    assert_as_exact_as_torch(out, batch)
    assert all((out[i] == 0).all() for i, length in enumerate(lengths) if length == 0)


@pytest.mark.parametrize("multiprocessors", [1, 4, 16, 132])
def test_the_number_of_shares_does_not_change_the_result(hopper, multiprocessors):
    hopper.set_num_multiprocessors(multiprocessors)
    batch = decodes_of([33, 4097, 0, 700], num_q_heads=4, num_kv_heads=1, head_size=128)
    assert_as_exact_as_torch(decode(batch), batch)


@pytest.mark.parametrize("requests", [257, 600])
def test_more_requests_than_a_thread_block_has_threads(requests):
    generator = torch.Generator().manual_seed(1)
    lengths = torch.randint(0, 60, (requests,), generator=generator).tolist()
    batch = decodes_of(lengths, num_q_heads=2, num_kv_heads=1)
    assert_as_exact_as_torch(decode(batch), batch)


def test_the_order_of_warps_and_blocks_does_not_matter(hopper):
    batch = decodes_of([90, 600, 5], head_size=128)
    results = []
    for seed in range(4):
        hopper.set_seed(seed)
        results.append(decode(batch))
    assert all(torch.equal(result, results[0]) for result in results)


@pytest.mark.parametrize("head_size", HEAD_SIZES)
def test_matrix_loads_have_no_bank_conflicts(hopper, head_size):
    decode(decodes_of([300], head_size=head_size))
    assert hopper.counters()["matrix_loads"] > 1000
    assert hopper.counters()["matrix_load_conflicts"] == 0


@pytest.mark.parametrize("interleaved", [False, True])
def test_caches_that_are_parts_of_one_tensor(hopper, interleaved):
    """Keys and values of a block beside one another, or slots that hold both: the maps follow the strides."""
    batch = decodes_of([40, 200], head_size=128)
    if interleaved:
        both = torch.stack([batch.k_cache, batch.v_cache], dim=3)  # [N, Hkv, S, 2, D]
        batch = replace(batch, k_cache=both[:, :, :, 0], v_cache=both[:, :, :, 1])
    else:
        both = torch.stack([batch.k_cache, batch.v_cache], dim=1)  # [N, 2, Hkv, S, D]
        batch = replace(batch, k_cache=both[:, 0], v_cache=both[:, 1])
    assert_as_exact_as_torch(decode(batch), batch)
    assert hopper.counters()["tensor_copies"] > 0


def test_blocks_that_are_no_whole_number_of_heads_apart_come_by_cp_async(hopper):
    batch = decodes_of([40, 100], head_size=128)
    room = torch.full((*batch.k_cache.shape[:1], 2 * 16 * 128 + 64), math.nan, dtype=torch.bfloat16)
    padded = room[:, : 2 * 16 * 128].unflatten(1, (2, 16, 128))
    padded.copy_(batch.k_cache)
    batch = replace(batch, k_cache=padded)
    assert_as_exact_as_torch(decode(batch), batch)
    assert hopper.counters()["tensor_copies"] == 0


def test_a_table_so_wide_that_the_line_could_not_be_counted_takes_the_older_kernel(hopper):
    batch = decodes_of([40, 100], head_size=128)
    wide = torch.empty(2, 2**29, dtype=torch.int32)  # of which only the first pages are ever backed by memory
    wide[:, : batch.block_table.shape[1]] = batch.block_table
    batch = replace(batch, block_table=wide)
    hopper.set_num_multiprocessors(1)
    assert_as_exact_as_torch(decode(batch), batch)
    assert hopper.counters()["tensor_copies"] == 0


def test_a_long_context_keeps_its_first_and_last_key():
    test_attention.test_a_long_context_keeps_its_first_and_last_key("emulated", 12289)


def test_blocks_beyond_32_bit_offsets():
    """A cache of 140,000 blocks, 8 heads of 128: only the pages that are touched take memory."""
    cache = torch.empty(140_000, 8, 16, 128, dtype=torch.bfloat16)
    small = decodes_of([70], num_q_heads=8, num_kv_heads=8, head_size=128)
    high = torch.tensor([65535, 65536, 131071, 131072, 139999])
    expected, out = torch.full_like(small.q, math.nan), torch.full_like(small.q, math.nan)
    ops.decode_attention(
        small.q, small.k_cache, small.k_cache, small.block_table, small.context_lens, expected, small.scale
    )
    cache[high] = small.k_cache[small.block_table[0, :5].long()]
    ops.decode_attention(small.q, cache, cache, high.int()[None], small.context_lens, out, small.scale)
    assert torch.equal(out, expected)


def test_a_table_as_wide_as_the_context_is_not_read_past_its_end():
    batch = decodes_of([70], head_size=128)
    batch = replace(batch, block_table=batch.block_table[:, :5].contiguous())
    assert_as_exact_as_torch(decode(batch), batch)


@pytest.mark.parametrize("head_size", [80, 96])
def test_other_head_sizes_take_the_older_kernel(hopper, head_size):
    batch = decodes_of([70], head_size=head_size)
    assert_as_exact_as_torch(decode(batch), batch)
    assert hopper.counters()["tensor_copies"] == 0


def test_the_older_kernel_can_be_asked_for(hopper):
    hopper.set_decode_kernel("async")
    decode(decodes_of([70]))
    assert hopper.counters()["tensor_copies"] == 0


def test_an_earlier_device_takes_the_older_kernel(hopper):
    hopper.set_compute_capability(80)
    decode(decodes_of([70]))
    assert hopper.counters()["tensor_copies"] == 0


def test_a_kernel_that_does_not_exist_is_named(hopper):
    with pytest.raises(ValueError, match="the decode kernel must be best, async or tensor, got fastest"):
        hopper.set_decode_kernel("fastest")


@PROPERTY
@given(
    context_lens=st.lists(st.integers(0, 700), min_size=1, max_size=5),
    **{**SHAPE, "head_size": st.sampled_from(HEAD_SIZES), "softcap": st.sampled_from([0.0, 0.0, 3.0])},
)
def test_whatever_the_lengths(
    hopper, context_lens, heads, head_size, block_size, dtype, kv_dtype, window, softcap, multiprocessors, seed
):
    hopper.set_num_multiprocessors(multiprocessors)
    hopper.set_seed(seed)
    batch = batch_of([1] * len(context_lens), context_lens, heads, head_size, block_size, dtype, kv_dtype, seed)
    out = decode(batch, window, softcap)
    assert_as_exact_as_torch(out, batch, window, softcap)
    assert all((out[i] == 0).all() for i, length in enumerate(context_lens) if length == 0)
