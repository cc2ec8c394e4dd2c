"""Caches of float8_e4m3fn with a scale for each KV head: what is stored, what it stands for, and what is refused."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from cudaprefill import ops
from tests.ops import reference
from tests.ops.attention_calls import decode, prefill
from tests.ops.attention_reference import FLOAT8, PagedBatch, from_float8, in_float8, paged_batch
from tests.ops.isa_levels import lower_float_levels, passes_at_isa_level
from tests.ops.op_calls import right_arguments
from tests.ops.reference import DTYPES
from tests.ops.test_rope_write_kv import EPS, at_slots, cos_sin_table, rotated

SCALES = torch.tensor([0.25, 0.3, 7.0])  # of as many heads; of one of them division is exact


@pytest.mark.parametrize("level", lower_float_levels())
def test_lower_float_levels_pass_this_file(level: str) -> None:
    passes_at_isa_level(level, __file__)


def bits(cache: Tensor) -> Tensor:
    """For comparison, which torch has not for these numbers; every NaN is 0x7f."""
    return torch.where(cache.isnan(), 0x7F, cache.view(torch.uint8))


def numbers_between_and_at_all_that_can_be_stored() -> Tensor:
    every = torch.arange(256, dtype=torch.uint8).view(FLOAT8).float()
    following = every.roll(-1)
    ties = (every + following) / 2
    near_ties = torch.cat([ties.nextafter(following), ties.nextafter(every)])
    beyond = torch.tensor([463.9, 464.0, 464.1, 480.0, 1e9, math.inf, 2**-10, 2**-10 * 1.01, 1e-40, 0.0, math.nan])
    any_bits = torch.randint(-(2**31), 2**31, (20000,)).to(torch.int32).view(torch.float32)
    return torch.cat([every, ties, near_ties, beyond, -beyond, any_bits])


@pytest.mark.parametrize("head_size", [64, 5])
@pytest.mark.parametrize("dtype", DTYPES)
def test_numbers_are_rounded_as_in_torch_and_end_at_448(dtype: torch.dtype, head_size: int) -> None:
    numbers = numbers_between_and_at_all_that_can_be_stored()
    numbers = numbers[: len(numbers) // head_size * head_size].view(-1, 1, head_size)
    k = (numbers * SCALES[:, None]).to(dtype)
    k_cache, v_cache = torch.zeros(2, len(k), 3, 1, head_size).to(FLOAT8)
    ops.write_kv(k, -k, k_cache, v_cache, torch.arange(len(k)), SCALES, SCALES.flip(0))
    assert torch.equal(bits(k_cache[:, :, 0]), bits(in_float8(k, SCALES)))
    assert torch.equal(bits(v_cache[:, :, 0]), bits(in_float8(-k, SCALES.flip(0))))
    assert torch.equal(k_cache[:, :, 0].isnan(), k.isnan())


def test_a_skipped_token_leaves_the_pool_alone() -> None:
    k = torch.full((3, 3, 64), 5.0)
    k_cache, v_cache = torch.full((2, 2, 3, 16, 64), math.nan).to(FLOAT8)
    ops.write_kv(k, k, k_cache, v_cache, torch.tensor([3, -1, 17]), SCALES, SCALES)
    for cache in (k_cache, v_cache):
        assert cache.float().isfinite().sum() == 2 * 3 * 64


@pytest.mark.parametrize("has_norms", [False, True])
@pytest.mark.parametrize("dtype", DTYPES)
def test_keys_are_rotated_before_they_are_rounded(dtype: torch.dtype, has_norms: bool) -> None:
    q, k, v = (torch.randn(9, heads, 64).to(dtype) for heads in (6, 3, 3))
    q_norm, k_norm = torch.randn(2, 64).to(dtype) if has_norms else (None, None)
    k_scale, v_scale = SCALES / 30, SCALES.flip(0) / 30
    cos_sin, positions = cos_sin_table(32), torch.arange(20, 29)
    slots = torch.randperm(64)[:9]
    slots[4] = -1
    k_cache, v_cache = torch.full((2, 4, 3, 16, 64), math.nan).to(FLOAT8)
    q_before = q.clone()
    ops.rope_write_kv(q, k, v, cos_sin, positions, k_cache, v_cache, slots, q_norm, k_norm, EPS, k_scale, v_scale)
    reference.assert_as_exact_as_torch(
        q, lambda computed_in: rotated(q_before, q_norm, cos_sin, positions, computed_in), dtype
    )
    written = slots >= 0
    exact = rotated(k, k_norm, cos_sin, positions, torch.float64)[written]
    stored = from_float8(at_slots(k_cache, slots[written]), k_scale).double()
    # Half of the distance between two numbers, of the subnormal ones at least.
    allowed = exact.abs() * (2**-4 + 2**-16) + 2**-10 * 1.001 * k_scale[:, None]
    saturated = exact.abs() > 448 * k_scale[:, None]
    assert ((stored - exact).abs() <= allowed)[~saturated].all()
    assert (stored.abs() == (448 * k_scale[:, None]).expand_as(stored))[saturated].all()
    assert torch.equal(bits(at_slots(v_cache, slots[written])), bits(in_float8(v[written], v_scale)))
    for cache in (k_cache, v_cache):
        assert cache.float().isfinite().sum() == 8 * 3 * 64


def single_keys(dtype: torch.dtype) -> PagedBatch:
    """Four requests of one key, whose values are all 256 numbers that there are."""
    batch = paged_batch([1] * 4, [1] * 4, 2, 1, dtype=dtype, kv_dtype=FLOAT8)
    batch.v_cache[batch.block_table[:, 0].long(), 0, 0] = torch.arange(256, dtype=torch.uint8).view(FLOAT8).view(4, 64)
    return batch


@pytest.mark.parametrize("run", [prefill, decode])
@pytest.mark.parametrize("dtype", DTYPES)
def test_every_number_stands_for_itself_times_the_scale(dtype: torch.dtype, run: Any) -> None:
    batch = single_keys(dtype)
    assert batch.v_scale is not None
    every = torch.arange(256, dtype=torch.uint8).view(FLOAT8).view(4, 1, 64)
    expected = from_float8(every, batch.v_scale).to(dtype).expand(4, 2, 64)
    torch.testing.assert_close(run(batch), expected, rtol=0, atol=0, equal_nan=True)


def test_nan_in_one_key_is_seen_by_those_alone_who_see_the_key() -> None:
    batch = paged_batch([40], [40], 2, 1, kv_dtype=FLOAT8)
    block, slot = batch.block_table[0, 1], 4
    batch.k_cache[block, 0, slot, 7] = math.nan
    out = prefill(batch)
    assert out[:20].isfinite().all()
    assert out[20:].isnan().all()


@pytest.mark.parametrize("block_size", [16, 32])
def test_blocks_are_copied_byte_by_byte(block_size: int) -> None:
    k_cache, v_cache = torch.randint(0, 256, (2, 6, 3, block_size, 64), dtype=torch.uint8)
    expected_k, expected_v = k_cache.clone(), v_cache.clone()
    for source, destination in ((0, 5), (5, 1)):
        expected_k[destination], expected_v[destination] = expected_k[source], expected_v[source]
    ops.copy_blocks(k_cache.view(FLOAT8), v_cache.view(FLOAT8), torch.tensor([[0, 5], [5, 1]]))
    assert torch.equal(k_cache, expected_k)
    assert torch.equal(v_cache, expected_v)


OPS = ("write_kv", "rope_write_kv", "prefill_attention", "decode_attention", "mixed_attention")


def float8_arguments(op: str) -> dict[str, Any]:
    arguments = right_arguments(op)
    caches = {name: arguments[name].to(FLOAT8) for name in ("k_cache", "v_cache")}
    return {**arguments, **caches, "k_scale": torch.tensor([0.1, 0.2]), "v_scale": torch.tensor([0.3, 0.4])}


def call(op: str, arguments: dict[str, Any]) -> None:
    getattr(torch.ops.cudaprefill, op)(**arguments)


@pytest.mark.parametrize("name", ["k_scale", "v_scale"])
@pytest.mark.parametrize("op", OPS)
def test_wrong_scales_are_refused_by_name(op: str, name: str) -> None:
    right = float8_arguments(op)
    call(op, right)
    for wrong, message in (
        (None, f"{name} must be given with caches of float8_e4m3fn, got none"),
        (torch.ones(3), rf"{name} must be \[num_kv_heads\] = \[2\], got \[3\]"),
        (torch.ones(2).double(), f"{name} must be float32, got float64"),
    ):
        with pytest.raises(ValueError, match=f"^{op}: {message}"):
            call(op, {**right, name: wrong})
    with pytest.raises(ValueError, match=f"^{op}: {name} must be given with caches of float8_e4m3fn alone, got one"):
        call(op, {**right_arguments(op), name: torch.ones(2)})
    for value in (0.0, -1.0, math.nan, math.inf, 1e-40):
        with pytest.raises(IndexError, match=rf"{name}\[1\] is .*, but a scale must be a normal number above 0"):
            call(op, {**right, name: torch.tensor([1.0, value])})


@pytest.mark.parametrize("op", OPS)
def test_the_fakes_take_such_caches(op: str) -> None:
    # The other checks of torch compute with the caches, which it cannot.
    call_of = getattr(torch.ops.cudaprefill, op).default
    torch.library.opcheck(call_of, (), float8_arguments(op), test_utils="test_faketensor")
