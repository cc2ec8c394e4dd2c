"""The core as Python sees it: dtypes, errors, lifetimes."""

from __future__ import annotations

import gc

import numpy as np
import pytest

from cudaprefill._core import BatchBuilder, BlockPool, BlockState, FinishReason, RequestTable


def test_the_pool_counts_its_blocks() -> None:
    pool = BlockPool(4, 16)
    block = pool.allocate()
    assert block == 0
    assert (pool.num_blocks, pool.block_size) == (4, 16)
    assert (pool.num_free, pool.num_cached, pool.num_used, pool.num_available) == (3, 0, 1, 3)
    assert pool.states().tolist() == [BlockState.ACTIVE, *[BlockState.FREE] * 3]
    assert pool.states().dtype == np.uint8
    pool.check()


def test_an_exhausted_pool_gives_none() -> None:
    pool = BlockPool(1, 16)
    pool.allocate()
    assert pool.allocate() is None


def test_errors_have_python_types_and_name_the_block() -> None:
    pool = BlockPool(2, 16)
    with pytest.raises(ValueError, match="block_size must be at least 1, got 0"):
        BlockPool(2, 0)
    with pytest.raises(IndexError, match="block 2 is not one of the pool's 2 blocks"):
        pool.free([2])
    with pytest.raises(IndexError, match="block -1 is not one of"):
        pool.share(-1)
    with pytest.raises(ValueError, match="block 0 is free already"):
        pool.free([0])
    with pytest.raises(RuntimeError, match="block 1 is free and cannot be shared"):
        pool.share(1)
    with pytest.raises(IndexError, match="row 7 holds no request"):
        RequestTable(pool).num_tokens(7)


def test_a_batch_comes_as_arrays_of_the_right_types_that_outlive_their_builder() -> None:
    table = RequestTable(BlockPool(4, 16))
    builder = BatchBuilder(table, 32, 2, 64)
    row = table.add([7, 8, 9], max_length=10, eos_token_ids=[1])
    assert table.reserve(row, 3) == 3
    arrays = builder.build([], [row])
    del table, builder
    gc.collect()
    assert [array.dtype for array in arrays] == [np.int64] * 3 + [np.int32] * 3 + [np.int64] * 3
    assert [array.shape for array in arrays] == [(3,), (3,), (3,), (2,), (1,), (1, 1), (1,), (1,), (0, 2)]
    assert arrays[0].tolist() == [7, 8, 9]


def test_rows_and_tokens_may_be_lists_or_arrays_but_not_tables() -> None:
    table = RequestTable(BlockPool(4, 16))
    row = table.add([7], max_length=4, eos_token_ids=[1], stop_token_ids=[2])
    table.reserve(row, 1)
    table.complete([row])
    assert table.append([row], [5]) == []
    table.end_step()
    (finished,) = table.append(np.array([row], dtype=np.int64), np.array([2], dtype=np.int32))
    assert (finished.index, finished.reason, finished.token) == (0, FinishReason.STOP_TOKEN, 2)
    with pytest.raises(ValueError, match="rows must have one dimension, got 2"):
        table.complete(np.zeros((1, 1), dtype=np.int32))
    with pytest.raises(ValueError, match="2 tokens for 1 rows"):
        table.append([row], [5, 6])


def test_extra_keys_take_text_and_bytes() -> None:
    table = RequestTable(BlockPool(4, 1))
    for value in (b"\xff\x00", b"\xff"):
        row = table.add([7, 8], max_length=4, extra_keys=[("cache_salt", value)])
        assert table.admit(row).hit_tokens == 0
        table.reserve(row, 2)
        table.complete([row])
        table.end_step()
        table.remove(row)
    row = table.add([7, 8], max_length=4, extra_keys=[("cache_salt", b"\xff")])
    assert table.admit(row).hit_tokens == 1


def test_hashes_are_equal_exactly_where_all_tokens_up_to_a_blocks_end_are() -> None:
    pool = BlockPool(8, 2)
    table = RequestTable(pool)
    first = table.block_hashes(table.add([1, 2, 3, 4, 5], max_length=9))
    same_start = table.block_hashes(table.add([1, 2, 3, 5], max_length=9))
    same_end = table.block_hashes(table.add([9, 2, 3, 4], max_length=9))
    salted = table.block_hashes(table.add([1, 2], max_length=9, extra_keys=[("cache_salt", b"x")]))
    assert (first.dtype, first.shape) == (np.uint64, (2,))
    assert first[0] == same_start[0]
    assert len({*first.tolist(), same_start[1], *same_end.tolist(), *salted.tolist()}) == 6


def test_evicted_prefixes_are_told_by_their_hashes() -> None:
    pool = BlockPool(2, 2)
    pool.record_evictions(True)
    table = RequestTable(pool)
    row = table.add([1, 2, 3, 4], max_length=9)
    head, tail = table.block_hashes(row)
    table.admit(row)
    table.reserve(row, 4)
    table.complete([row])
    table.end_step()
    table.remove(row)
    assert pool.take_evictions().tolist() == []
    pool.allocate()
    assert pool.take_evictions().tolist() == [tail]
    pool.record_evictions(False)
    pool.allocate()
    assert head not in pool.take_evictions()
