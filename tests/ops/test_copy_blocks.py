"""copy_blocks: whole blocks of K and V, pair after pair."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from cudaprefill import ops
from tests.ops.huge_cache import FAR_BLOCKS, NEAR_BLOCKS, huge_cache
from tests.ops.reference import DTYPES


def check(k_cache: Tensor, v_cache: Tensor, pairs: list[tuple[int, int]]) -> None:
    expected_k, expected_v = k_cache.clone(), v_cache.clone()
    for source, destination in pairs:
        expected_k[destination] = expected_k[source]
        expected_v[destination] = expected_v[source]
    ops.copy_blocks(k_cache, v_cache, torch.tensor(pairs, dtype=torch.int64).view(-1, 2))
    assert torch.equal(k_cache, expected_k)
    assert torch.equal(v_cache, expected_v)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("block_size", [16, 32, 64])
@pytest.mark.parametrize("head_size", [64, 80, 3])
def test_every_dtype_and_size(dtype: torch.dtype, block_size: int, head_size: int) -> None:
    k_cache, v_cache = torch.randn(2, 6, 3, block_size, head_size).to(dtype)
    check(k_cache, v_cache, [(0, 5), (2, 1), (3, 3)])


def test_caches_whose_slots_do_not_adjoin() -> None:
    k_cache, v_cache = torch.randn(2, 6, 16, 3, 8).transpose(2, 3)
    check(k_cache, v_cache, [(0, 5), (5, 2)])


@pytest.mark.parametrize("block", [-1, 4, 2**40])
@pytest.mark.parametrize("column", [0, 1])
def test_a_block_out_of_range_raises_and_nothing_is_written(block: int, column: int) -> None:
    k_cache, v_cache = torch.randn(2, 4, 2, 16, 8)
    before = k_cache.clone()
    pairs = torch.tensor([[0, 1], [2, 3]])
    pairs[1, column] = block
    with pytest.raises(IndexError, match=rf"block_pairs\[1\] holds block {block}, but the cache has 4 blocks"):
        ops.copy_blocks(k_cache, v_cache, pairs)
    assert torch.equal(k_cache, before)


def test_blocks_far_beyond_32_bit_offsets() -> None:
    k_cache, v_cache = huge_cache(), huge_cache()
    blocks = torch.randn(len(NEAR_BLOCKS), 8, 16, 128).bfloat16()
    k_cache[NEAR_BLOCKS] = blocks
    v_cache[NEAR_BLOCKS] = -blocks
    ops.copy_blocks(k_cache, v_cache, torch.tensor([NEAR_BLOCKS, FAR_BLOCKS]).T.contiguous())
    assert torch.equal(k_cache[FAR_BLOCKS], blocks)
    assert torch.equal(v_cache[FAR_BLOCKS], -blocks)
