"""rope_write_kv: q is normed and rotated in place, k and v go to their slots, k normed and rotated too."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from cudaprefill import ops
from tests.ops import reference
from tests.ops.huge_cache import FAR_BLOCKS, NEAR_BLOCKS, huge_cache
from tests.ops.reference import DTYPES, assert_as_exact_as_torch, stored

EPS = 1e-6
BLOCK_SIZE = 16
MAX_POSITIONS = 100


def cos_sin_table(rotary_dim: int) -> Tensor:
    frequencies = 10000.0 ** (-torch.arange(rotary_dim // 2) * 2 / max(rotary_dim, 1))
    angles = torch.arange(MAX_POSITIONS)[:, None] * frequencies
    return torch.cat([angles.cos(), angles.sin()], dim=-1)


def rotated(x: Tensor, norm: Tensor | None, cos_sin: Tensor, positions: Tensor, dtype: torch.dtype) -> Tensor:
    if norm is not None:
        x = reference.rms_norm(x, norm, EPS, dtype)
    return reference.rope(x, cos_sin, positions, dtype)


def at_slots(cache: Tensor, slots: Tensor) -> Tensor:
    return cache[slots // BLOCK_SIZE, :, slots % BLOCK_SIZE]


def check(
    q: Tensor, k: Tensor, v: Tensor, rotary_dim: int, kv_dtype: torch.dtype, norms: tuple[Tensor, Tensor] | None = None
) -> None:
    """Writes all tokens but the second; the other slots of the pool stay NaN."""
    cos_sin = cos_sin_table(rotary_dim)
    positions = torch.randint(0, MAX_POSITIONS, (q.shape[0],))
    slots = torch.randperm(4 * BLOCK_SIZE)[: q.shape[0]]
    slots[1:2] = -1
    q_norm, k_norm = norms if norms is not None else (None, None)
    k_cache, v_cache = torch.full((2, 4, k.shape[1], BLOCK_SIZE, k.shape[2]), math.nan, dtype=kv_dtype)
    q_before, k_before, v_before = q.clone(), k.clone(), v.clone()
    ops.rope_write_kv(q, k, v, cos_sin, positions, k_cache, v_cache, slots, q_norm, k_norm, EPS)

    assert_as_exact_as_torch(q, lambda dtype: rotated(q_before, q_norm, cos_sin, positions, dtype), q.dtype)
    assert torch.equal(k, k_before)
    assert torch.equal(v, v_before)
    written = slots >= 0
    assert_as_exact_as_torch(
        at_slots(k_cache, slots[written]),
        lambda dtype: rotated(k[written], k_norm, cos_sin, positions[written], dtype),
        kv_dtype if torch.finfo(kv_dtype).eps > torch.finfo(k.dtype).eps else k.dtype,
    )
    assert torch.equal(at_slots(v_cache, slots[written]), stored(v[written], kv_dtype))
    for cache in (k_cache, v_cache):
        assert cache.isfinite().sum() == written.sum() * k.shape[1] * k.shape[2]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kv_dtype", DTYPES)
@pytest.mark.parametrize("has_norms", [False, True])
def test_every_dtype(dtype: torch.dtype, kv_dtype: torch.dtype, has_norms: bool) -> None:
    q, k, v = (torch.randn(9, heads, 64).to(dtype) for heads in (6, 2, 2))
    norms = (torch.randn(64).to(dtype), torch.randn(64).to(dtype)) if has_norms else None
    check(q, k, v, 64, kv_dtype, norms)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_float16_cache_takes_what_is_too_large_for_it_as_its_largest_number(dtype: torch.dtype) -> None:
    k, v = 1e6 * torch.randn(2, 3, 2, 72).to(dtype)  # whole vectors, and the rest of one
    k_cache, v_cache = torch.zeros(2, 1, 2, BLOCK_SIZE, 72, dtype=torch.float16)
    slots = torch.arange(3)
    ops.rope_write_kv(k.clone(), k, v, cos_sin_table(72), torch.zeros(3).long(), k_cache, v_cache, slots)
    turned = rotated(k, None, cos_sin_table(72), torch.zeros(3).long(), torch.float32)
    assert torch.equal(at_slots(k_cache, slots), stored(turned, torch.float16))
    assert torch.equal(at_slots(v_cache, slots), stored(v, torch.float16))


@pytest.mark.parametrize(
    ("head_size", "rotary_dim"),
    [(64, 64), (80, 80), (80, 32), (96, 96), (128, 128), (128, 64), (256, 256), (256, 64), (6, 6), (50, 22), (64, 0)],
)
@pytest.mark.parametrize("has_norms", [False, True])
def test_head_sizes_and_partial_rotation(head_size: int, rotary_dim: int, has_norms: bool) -> None:
    q, k, v = (torch.randn(5, heads, head_size) for heads in (6, 2, 2))
    norms = (torch.randn(head_size), torch.randn(head_size)) if has_norms else None
    check(q, k, v, rotary_dim, torch.bfloat16, norms)


def test_only_q_or_only_k_is_normed() -> None:
    cos_sin, positions, slots = cos_sin_table(64), torch.arange(3), torch.arange(3)
    norm = torch.randn(64)
    for q_norm, k_norm in [(norm, None), (None, norm)]:
        q, k, v = torch.randn(3, 3, 2, 64)
        q_before = q.clone()
        k_cache, v_cache = torch.zeros(2, 1, 2, BLOCK_SIZE, 64)
        ops.rope_write_kv(q, k, v, cos_sin, positions, k_cache, v_cache, slots, q_norm, k_norm, EPS)
        torch.testing.assert_close(q, rotated(q_before, q_norm, cos_sin, positions, torch.float32))
        torch.testing.assert_close(at_slots(k_cache, slots), rotated(k, k_norm, cos_sin, positions, torch.float32))


def test_views_of_one_fused_row() -> None:
    fused = torch.randn(7, (6 + 2 + 2) * 64)
    before = fused.clone()
    q, k, v = (fused.view(7, 10, 64)[:, heads] for heads in (slice(0, 6), slice(6, 8), slice(8, 10)))
    check(q, k, v, 64, torch.float32)
    assert torch.equal(fused[:, 6 * 64 :], before[:, 6 * 64 :])
    assert not torch.equal(fused[:, : 6 * 64], before[:, : 6 * 64])


def test_many_tokens_on_several_threads() -> None:
    q, k, v = torch.randn(3, 60, 4, 128)
    check(q, k, v, 128, torch.float32)


def test_no_tokens() -> None:
    q, k, v = torch.randn(3, 0, 4, 64)
    check(q, k, v, 64, torch.float32)


def test_nan_rows_with_slot_minus_one_leave_the_pool_and_the_real_rows_alone() -> None:
    q, k, v = torch.randn(3, 4, 2, 64)
    cos_sin, positions = cos_sin_table(64), torch.arange(4)
    expected_q = reference.rope(q, cos_sin, positions, torch.float32)
    q[3] = k[3] = v[3] = math.nan
    k_cache, v_cache = torch.zeros(2, 8, 2, BLOCK_SIZE, 64)
    ops.rope_write_kv(q, k, v, cos_sin, positions, k_cache, v_cache, torch.tensor([5, 37, 90, -1]))
    torch.testing.assert_close(q[:3], expected_q[:3])
    for cache in (k_cache, v_cache):
        assert cache.isfinite().all()
        slots_written = (cache.transpose(1, 2).reshape(8 * BLOCK_SIZE, -1) != 0).any(dim=1).nonzero().flatten()
        assert slots_written.tolist() == [5, 37, 90]


@pytest.mark.parametrize(
    ("positions", "slots", "message"),
    [
        ([0, 100], [0, 1], r"position_ids\[1\] is 100, but cos_sin has 100 positions"),
        ([-1, 0], [0, 1], r"position_ids\[0\] is -1, but cos_sin has 100 positions"),
        ([0, 1], [0, 32], r"slot_mapping\[1\] is 32, but the cache has 32 slots"),
        ([0, 1], [-2, 0], r"slot_mapping\[0\] is -2, but the cache has 32 slots"),
    ],
)
def test_values_out_of_range_raise_and_nothing_is_written(positions: list[int], slots: list[int], message: str) -> None:
    q, k, v = torch.randn(3, 2, 2, 64)
    k_cache, v_cache = torch.zeros(2, 2, 2, BLOCK_SIZE, 64)
    before = q.clone()
    with pytest.raises(IndexError, match=message):
        ops.rope_write_kv(q, k, v, cos_sin_table(64), torch.tensor(positions), k_cache, v_cache, torch.tensor(slots))
    assert torch.equal(q, before)
    assert not k_cache.any()
    assert not v_cache.any()


def test_blocks_far_beyond_32_bit_offsets() -> None:
    k_cache, v_cache = huge_cache(), huge_cache()
    k, v = torch.randn(2, len(FAR_BLOCKS), 8, 128).to(k_cache.dtype)
    cos_sin, positions = cos_sin_table(128), torch.arange(len(FAR_BLOCKS))
    for blocks in (FAR_BLOCKS, NEAR_BLOCKS):
        slots = torch.tensor(blocks) * BLOCK_SIZE + 7
        ops.rope_write_kv(torch.randn(k.shape).bfloat16(), k, v, cos_sin, positions, k_cache, v_cache, slots)
    assert torch.equal(at_slots(v_cache, torch.tensor(FAR_BLOCKS) * BLOCK_SIZE + 7), v)
    assert torch.equal(k_cache[FAR_BLOCKS, :, 7], k_cache[NEAR_BLOCKS, :, 7])
    assert_as_exact_as_torch(
        k_cache[FAR_BLOCKS, :, 7], lambda dtype: reference.rope(k, cos_sin, positions, dtype), torch.bfloat16
    )
