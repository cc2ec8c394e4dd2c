"""Emulated `cp.async.bulk.tensor` keeps the rules of the PTX ISA: boxes, swizzles, zeros outside."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from tests.emu.hopper_probes import SWIZZLE_BYTES, UNTOUCHED, for_some_seed, place_of_chunk, probes


def copy_box(source, extent, stride_bytes, box, swizzle, first, choice=0, probe=None):
    """Shared memory, 16-bit elements, after the copy of one box."""
    out = np.full(max(np.prod(box) // 2, 64), UNTOUCHED, dtype=np.uint32)
    (probe or probes.tensor_copy)(source, extent, stride_bytes, box, swizzle, first, out, choice=choice)
    return out.view(np.uint16)


def expected_box(source, extent, stride_bytes, box, swizzle, first):
    """Element by element: the box in the order of its dimensions, zeros outside, swizzled row by row."""
    row_bytes = SWIZZLE_BYTES[swizzle] or 16
    expected = np.zeros(np.prod(box), dtype=np.uint16)
    for number, place in enumerate(itertools.product(*(range(n) for n in reversed(box)))):
        at = [start + offset for start, offset in zip(first, reversed(place), strict=True)]
        inside = all(0 <= x < n for x, n in zip(at, extent, strict=True))
        offset = at[0] + sum(x * stride // 2 for x, stride in zip(at[1:], stride_bytes, strict=True))
        row, byte = divmod(2 * number, row_bytes)
        chunk = place_of_chunk(SWIZZLE_BYTES[swizzle], row, byte // 16)
        expected[(row * row_bytes + chunk * 16 + byte % 16) // 2] = source[offset] if inside else 0
    return expected


SOURCE = np.arange(1, 4097, dtype=np.uint16)


@pytest.mark.parametrize("swizzle", range(4))
def test_a_box_lands_in_the_order_of_its_dimensions_and_swizzled(swizzle):
    inner = SWIZZLE_BYTES[swizzle] // 2 or 24
    for extent, stride_bytes, box, first in [
        ([64], [], [inner], [8]),
        ([64, 32], [128], [inner, 16], [0, 3]),
        ([64, 8, 2, 2, 2], [128, 1024, 2048, 4096], [inner, 8, 2, 2, 1], [0, 0, 0, 0, 1]),
        ([40, 5, 3, 2], [112, 640, 2048], [inner, 4, 2, 2], [0, 1, 1, 0]),
    ]:
        arguments = (SOURCE, extent, stride_bytes, box, swizzle, first)
        got, expected = copy_box(*arguments), expected_box(*arguments)
        assert np.array_equal(got[: len(expected)], expected)


@pytest.mark.parametrize("first", [[-3, 0, 0], [60, 0, 0], [0, -1, 0], [0, 6, 1], [0, 0, 2], [0, 0, -1], [64, 8, 2]])
def test_what_lies_outside_the_tensor_is_zero_and_counted(first):
    arguments = (SOURCE, [64, 8, 2], [128, 1024], [64, 8, 1], 3, first)
    assert np.array_equal(copy_box(*arguments), expected_box(*arguments))


def test_a_box_may_be_larger_than_the_tensor():
    arguments = (SOURCE, [16, 3], [64], [64, 8], 3, [0, 0])
    assert np.array_equal(copy_box(*arguments), expected_box(*arguments))


@pytest.mark.parametrize(
    ("extent", "stride_bytes", "box", "swizzle", "message"),
    [
        ([64, 8], [120], [64, 8], 3, "the stride, no multiple of 16 below 2.40, of dimension 1 is 120"),
        ([64, 8], [128], [64, 257], 3, "the box, not in 1..256, of dimension 1 is 257"),
        ([64, 8], [128], [12, 8], 3, "the inner bytes of the box, no multiple of 16, of dimension 0 is 24"),
        ([256, 8], [512], [128, 8], 3, "more than the swizzle spans, of dimension 0 is 256"),
        ([64, 0], [128], [64, 8], 3, "the extent, not in 1..2.32, of dimension 1 is 0"),
    ],
)
def test_a_map_that_the_driver_would_refuse_is_refused(extent, stride_bytes, box, swizzle, message):
    with pytest.raises(ValueError, match=message):
        copy_box(SOURCE, extent, stride_bytes, box, swizzle, [0, 0])


PAGE = ([64, 16], [128], [64, 16], 3, [0, 0])


@pytest.mark.parametrize(
    ("choice", "message"),
    [
        (1, "cp.async.bulk.tensor: no fence lies between this and mbarrier.init"),
        (2, "no fence.proxy.async lies between this access of the asynchronous proxy to byte 1024 .* by thread 0"),
        (4, "shared address 2176 is not a multiple of 1024, after which the swizzle repeats"),
        (6, "the block has ended, and 1 tensor copies have not landed"),
        (7, "touches shared memory that an unfinished tensor copy is about to write"),
        (8, "touches shared memory that an unfinished tensor copy is about to write"),  # the wrong phase
    ],
)
def test_a_careless_tensor_copy_is_a_fault(choice, message):
    with pytest.raises(probes.Fault, match=message):
        copy_box(SOURCE, *PAGE, choice=choice)


def test_a_fenced_write_may_be_overwritten_by_a_tensor_copy():
    assert np.array_equal(copy_box(SOURCE, *PAGE, choice=3), expected_box(SOURCE, *PAGE))


def test_a_tensor_copy_reads_its_source_as_late_as_the_wait_allows():
    assert list(copy_box(SOURCE.copy(), *PAGE, choice=5)[:2]) == [0xABCD, 0xABCD]


def test_a_read_beyond_the_memory_behind_the_map_is_a_fault():
    with pytest.raises(probes.Fault, match=r"invalid global read by cp\.async\.bulk\.tensor: at byte 8192 of source"):
        copy_box(SOURCE, [64, 100], [128], [64, 16], 3, [0, 64])


def test_a_tensor_copy_over_what_is_still_read_is_a_race():
    with pytest.raises(probes.Fault, match=r"race: .* the read by thread 32|touches shared memory"):
        for_some_seed(lambda: copy_box(SOURCE, *PAGE, probe=probes.tensor_copy_over_reader))
    copy_box(SOURCE, *PAGE, choice=1, probe=probes.tensor_copy_over_reader)
