"""Decodes and chunks in one launch of the Hopper prefill, on the emulated device: narrow tiles beside wide ones."""

from __future__ import annotations

import math
from collections.abc import Iterator

import pytest
import torch

pytest.importorskip("hypothesis")

from hypothesis import given
from hypothesis import strategies as st

from tests.cuda.hopper_device import hopper_device
from tests.cuda.test_attention import HALF_TYPES, half_batch
from tests.cuda.test_attention_properties import PROPERTY, SHAPE, batch_of
from tests.cuda.test_ops_on_cuda import SHARED
from tests.ops import test_mixed_attention
from tests.ops.attention_calls import attend, prefill
from tests.ops.attention_reference import FLOAT8, assert_as_exact_as_torch

HEAD_SIZES = (64, 128, 256)
PRODUCERS = st.sampled_from(["tensor", "async"])


@pytest.fixture(params=["tensor", "async"], autouse=True)
def hopper(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[object]:
    """Keys and values come by tensor copies or by cp.async."""
    with hopper_device(monkeypatch, test_mixed_attention, request.param) as device:
        yield device


globals().update(
    {f"test_ops_{name}": getattr(test_mixed_attention, f"test_{name}") for name in SHARED[test_mixed_attention]}
)


@pytest.mark.parametrize("dtype", HALF_TYPES)
@pytest.mark.parametrize("head_size", HEAD_SIZES)
def test_every_head_size(hopper, head_size, dtype):
    batch = half_batch([1, 1, 1, 33, 200], [700, 1, 129, 133, 200], dtype, head_size=head_size)
    assert_as_exact_as_torch(attend(batch, 3), batch)


@pytest.mark.parametrize("hopper", ["best"], indirect=True)
def test_float8_decodes_and_chunks_come_from_one_queue(hopper):
    hopper.set_num_multiprocessors(1)
    options = {"num_q_heads": 4, "num_kv_heads": 2, "head_size": 128, "kv_dtype": FLOAT8}
    batch = half_batch([1, 1, 5, 130], [900, 40, 300, 260], **options)
    assert_as_exact_as_torch(attend(batch, 2), batch)
    assert hopper.counters()["tensor_copies"] == 0  # which decodes alone would have come by


def test_a_mixed_step_is_one_launch_beside_its_plan_and_its_merge(hopper):
    attend(half_batch([1, 1, 200], [700, 130, 200], head_size=128), 2)
    assert hopper.counters()["launches"] == 3


def test_at_head_size_256_the_two_kernels_run_in_turn(hopper):
    batch = half_batch([1, 1, 40], [700, 130, 60], head_size=256)
    assert_as_exact_as_torch(attend(batch, 2), batch)
    assert hopper.counters()["launches"] == 2 + 3


@pytest.mark.parametrize(("head_size", "key_tile"), [(64, 112), (128, 128)])
def test_a_decode_takes_half_of_the_products_of_a_wide_tile_or_less(hopper, head_size, key_tile):
    """Every tile of keys is multiplied by one warpgroup and not by each."""
    hopper.set_num_multiprocessors(1)
    attend(half_batch([1, 64], [1000, 64], head_size=head_size, num_q_heads=1, num_kv_heads=1), 1)
    alone = hopper.counters()["products"]
    hopper.reset_counters()
    prefill(half_batch([64], [64], head_size=head_size, num_q_heads=1, num_kv_heads=1))
    warps = 4
    steps = head_size // 16 + key_tile // 16
    assert alone - hopper.counters()["products"] == math.ceil(1000 / key_tile) * steps * warps


@pytest.mark.parametrize(("tokens", "heads"), [(64, 1), (65, 1), (16, 4), (17, 4), (3, 20), (4, 20)])
def test_tiny_chunks_on_either_side_of_the_border_between_the_classes(tokens, heads):
    batch = half_batch([1, tokens], [300, 500], num_q_heads=heads, num_kv_heads=1, head_size=128)
    assert_as_exact_as_torch(attend(batch, 1), batch)


@pytest.mark.parametrize("multiprocessors", [1, 4, 16, 132])
def test_the_number_of_splits_does_not_change_the_result(hopper, multiprocessors):
    hopper.set_num_multiprocessors(multiprocessors)
    batch = half_batch([1, 1, 1, 40], [2000, 3, 700, 300], num_q_heads=2, num_kv_heads=1, head_size=128)
    assert_as_exact_as_torch(attend(batch, 3), batch)


@pytest.mark.parametrize("head_size", HEAD_SIZES)
def test_the_order_of_warps_and_blocks_does_not_matter(hopper, head_size):
    batch = half_batch([1, 1, 150], [600, 290, 150], head_size=head_size, num_q_heads=2, num_kv_heads=1)
    results = []
    for seed in range(4):
        hopper.set_seed(seed)
        results.append(attend(batch, 2))
    assert all(torch.equal(result, results[0]) for result in results)


def test_an_earlier_device_takes_the_two_kernels_in_turn(hopper):
    hopper.set_compute_capability(80)
    batch = half_batch([1, 1, 20], [70, 3, 40], head_size=128)
    assert_as_exact_as_torch(attend(batch, 2), batch)
    assert hopper.counters()["products"] == 0


@pytest.mark.parametrize("hopper", ["best"], indirect=True)
@PROPERTY
@given(
    decodes=st.lists(st.integers(1, 500), min_size=1, max_size=4),
    chunks=st.lists(st.tuples(st.integers(0, 40), st.integers(0, 150)), min_size=1, max_size=3),
    **{
        **SHAPE,
        "head_size": st.sampled_from(HEAD_SIZES),
        "softcap": st.sampled_from([0.0, 0.0, 3.0]),
        "producer": PRODUCERS,
    },
)
def test_whatever_the_lengths(
    hopper,
    decodes,
    chunks,
    heads,
    head_size,
    block_size,
    dtype,
    kv_dtype,
    window,
    softcap,
    producer,
    multiprocessors,
    seed,
):
    hopper.set_prefill_kernel(producer)
    hopper.set_num_multiprocessors(multiprocessors)
    hopper.set_seed(seed)
    new = [1] * len(decodes) + [new for new, _ in chunks]
    lens = [*decodes, *(new + cached for new, cached in chunks)]
    batch = batch_of(new, lens, heads, head_size, block_size, dtype, kv_dtype, seed)
    assert_as_exact_as_torch(attend(batch, len(decodes), window, softcap), batch, window, softcap)
