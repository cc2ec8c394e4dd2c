"""write_kv: each token's K and V end up in its slot, converted exactly, and nowhere else."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from cudaprefill import ops
from tests.ops.huge_cache import FAR_BLOCKS, NEAR_BLOCKS, huge_cache
from tests.ops.reference import DTYPES, stored


def caches(
    num_blocks: int, num_heads: int, block_size: int, head_size: int, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """K and V caches full of numbers, so that a slot which changed shows."""
    shape = (num_blocks, num_heads, block_size, head_size)
    return torch.randn(shape).to(dtype), torch.randn(shape).to(dtype)


def expected_cache(cache: Tensor, rows: Tensor, slot_mapping: Tensor) -> Tensor:
    block_size = cache.shape[2]
    expected = cache.clone()
    for row, slot in zip(rows, slot_mapping.tolist(), strict=True):
        if slot >= 0:
            expected[slot // block_size, :, slot % block_size] = stored(row, cache.dtype)
    return expected


def check(k: Tensor, v: Tensor, k_cache: Tensor, v_cache: Tensor, slot_mapping: Tensor) -> None:
    expected_k, expected_v = expected_cache(k_cache, k, slot_mapping), expected_cache(v_cache, v, slot_mapping)
    ops.write_kv(k, v, k_cache, v_cache, slot_mapping)
    torch.testing.assert_close(k_cache, expected_k, rtol=0, atol=0, equal_nan=True)
    torch.testing.assert_close(v_cache, expected_v, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kv_dtype", DTYPES)
@pytest.mark.parametrize("head_size", [64, 80, 96, 128, 256, 3])
def test_every_dtype_and_head_size(dtype: torch.dtype, kv_dtype: torch.dtype, head_size: int) -> None:
    k, v = torch.randn(2, 5, 3, head_size).to(dtype)
    check(k, v, *caches(4, 3, 16, head_size, kv_dtype), torch.tensor([5, 63, 0, -1, 16]))


def test_many_tokens_on_several_threads() -> None:
    k, v = torch.randn(2, 700, 3, 64)
    check(k, v, *caches(60, 3, 16, 64, torch.bfloat16), torch.randperm(960)[:700])


def test_a_nan_row_with_slot_minus_one_leaves_the_pool_alone() -> None:
    k, v = torch.randn(2, 4, 2, 64)
    k[3] = v[3] = math.nan
    k_cache, v_cache = caches(8, 2, 16, 64, torch.float32)
    check(k, v, k_cache, v_cache, torch.tensor([5, 37, 90, -1]))
    assert k_cache.isfinite().all()
    assert v_cache.isfinite().all()


def test_views_of_one_fused_row() -> None:
    fused = torch.randn(6, (4 + 2 + 2) * 64)
    k = fused[:, 4 * 64 : 6 * 64].view(6, 2, 64)
    v = fused[:, 6 * 64 :].view(6, 2, 64)
    check(k, v, *caches(2, 2, 16, 64, torch.float32), torch.arange(6) + 3)


def test_caches_that_are_views() -> None:
    layers = torch.randn(3, 2, 4, 2, 16, 64)
    before = layers.clone()
    k, v = torch.randn(2, 3, 2, 64)
    slot_mapping = torch.tensor([20, 2, 61])
    check(k, v, layers[1, 0], layers[1, 1], slot_mapping)
    torch.testing.assert_close(layers[[0, 2]], before[[0, 2]], rtol=0, atol=0)

    tokens_before_heads = torch.randn(4, 16, 2, 64)
    check(k, v, tokens_before_heads.transpose(1, 2), torch.randn(4, 2, 16, 64), slot_mapping)


def test_no_tokens() -> None:
    empty = torch.empty(0, 2, 64)
    check(empty, empty, *caches(2, 2, 16, 64, torch.float32), torch.empty(0, dtype=torch.int64))


@pytest.mark.parametrize("slot", [-2, 64, 2**40])
def test_a_slot_out_of_range_raises_and_nothing_is_written(slot: int) -> None:
    k_cache, v_cache = caches(4, 2, 16, 8, torch.float32)
    before = k_cache.clone(), v_cache.clone()
    with pytest.raises(IndexError, match=rf"slot_mapping\[1\] is {slot}, but the cache has 64 slots"):
        ops.write_kv(torch.ones(2, 2, 8), torch.ones(2, 2, 8), k_cache, v_cache, torch.tensor([3, slot]))
    assert torch.equal(k_cache, before[0])
    assert torch.equal(v_cache, before[1])


@pytest.mark.parametrize("head_size", [16, 5])  # whole vectors, and only the rest of one
@pytest.mark.parametrize("half", [torch.bfloat16, torch.float16])
def test_every_16_bit_number_widens_exactly(half: torch.dtype, head_size: int) -> None:
    every = torch.arange(-(2**15), 2**15, dtype=torch.int32).to(torch.int16).view(half)
    rows = torch.cat([every, every[: -len(every) % head_size]]).view(-1, 1, head_size)
    check(rows, rows, *caches(rows.shape[0], 1, 1, head_size, torch.float32), torch.arange(rows.shape[0]))


@pytest.mark.parametrize("head_size", [16, 5])
@pytest.mark.parametrize("half", [torch.bfloat16, torch.float16])
def test_float32_rounds_to_16_bits_as_in_torch(half: torch.dtype, head_size: int) -> None:
    any_bits = torch.randint(-(2**31), 2**31, (80000,)).to(torch.int32).view(torch.float32)
    # Exact 16-bit numbers, halves between two of them (ties) and their neighbours on both sides.
    numbers = torch.arange(0, 2**15, 7, dtype=torch.int16).view(half).float()
    following = torch.arange(1, 2**15 + 1, 7, dtype=torch.int32).clamp(max=2**15 - 1).to(torch.int16).view(half).float()
    ties = (numbers + following) / 2
    edges = torch.cat([numbers, ties, ties.nextafter(following), ties.nextafter(numbers)])
    limits = torch.tensor([65503.9, 65504.0, 65519.9, 65520.0, 3.4e38, math.inf, 2**-24, 2**-25, 2**-25 * 1.01, 1e-45])
    values = torch.cat([any_bits, edges, -edges, limits, -limits])
    rows = torch.cat([values, values[: -len(values) % head_size]]).view(-1, 1, head_size)
    check(rows, rows, *caches(rows.shape[0], 1, 1, head_size, half), torch.arange(rows.shape[0]))


def test_blocks_far_beyond_32_bit_offsets() -> None:
    k_cache, v_cache = huge_cache(), huge_cache()
    k, v = torch.randn(2, len(FAR_BLOCKS), 8, 128).to(k_cache.dtype)
    for blocks in (FAR_BLOCKS, NEAR_BLOCKS):
        ops.write_kv(k, v, k_cache, v_cache, torch.tensor(blocks) * 16 + 7)
        assert torch.equal(k_cache[blocks, :, 7], k)
        assert torch.equal(v_cache[blocks, :, 7], v)
