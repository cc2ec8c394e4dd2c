"""Emulated `wgmma` keeps the rules of the PTX ISA: descriptors, batches, accumulators."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch

from tests.emu.hopper_probes import SWIZZLE_BYTES, place_of_chunk, probes


def descriptor(start: int, leading: int, stride: int, swizzle_bytes: int, base_offset: int = 0) -> int:
    """The bits of a matrix descriptor, as the ISA lists them."""
    mode = {0: 0, 128: 1, 64: 2, 32: 3}[swizzle_bytes]
    return start >> 4 | leading >> 4 << 16 | stride >> 4 << 32 | base_offset << 49 | mode << 62


class Image:
    """What shared memory holds from DATA_AT on, and matrices in it."""

    def __init__(self, dtype: torch.dtype, size: int = 48 * 1024) -> None:
        self.dtype = dtype
        self.elements = torch.full((size // 2,), torch.nan, dtype=dtype)

    def _put(self, byte: int, values: torch.Tensor) -> None:
        self.elements[byte // 2 : byte // 2 + 8] = values

    def place_rows(self, matrix: torch.Tensor, at: int, swizzle_bytes: int, leading: int, stride: int) -> int:
        """[rows, 16], K-major: groups of eight rows, `stride` apart. Returns the descriptor."""
        row_bytes = swizzle_bytes or 16
        for row, chunk in itertools.product(range(matrix.shape[0]), range(2)):
            values = matrix[row, 8 * chunk : 8 * chunk + 8]
            if swizzle_bytes == 0:
                self._put(at + row // 8 * stride + row % 8 * 16 + chunk * leading, values)
            else:
                place = place_of_chunk(swizzle_bytes, row % 8, chunk)
                self._put(at + row // 8 * stride + row % 8 * row_bytes + place * 16, values)
        return descriptor(probes.DATA_AT + at, leading, stride, swizzle_bytes)

    def place_columns(self, matrix: torch.Tensor, at: int, swizzle_bytes: int, leading: int, stride: int) -> int:
        """[columns, 16], MN-major: rows of the inner dimension, as long as the swizzle, in groups of eight."""
        row_bytes = swizzle_bytes or 16
        chunks_of_row = row_bytes // 16
        across, along = (stride, leading) if swizzle_bytes == 0 else (leading, stride)
        for inner, chunk in itertools.product(range(16), range(matrix.shape[0] // 8)):
            values = matrix[8 * chunk : 8 * chunk + 8, inner]
            group, in_row = divmod(chunk, chunks_of_row)
            place = place_of_chunk(swizzle_bytes, inner % 8, in_row)
            self._put(at + inner // 8 * along + group * across + inner % 8 * row_bytes + place * 16, values)
        return descriptor(probes.DATA_AT + at, leading, stride, swizzle_bytes)

    def words(self) -> np.ndarray:
        return self.elements.view(torch.int16).numpy().view(np.uint32)


def fragments_of(a: torch.Tensor) -> np.ndarray:
    """A [64, 16] over the registers of a warpgroup, from the ISA's formulas for wgmma.m64k16, element by element."""
    fragments = torch.empty(128, 8, dtype=a.dtype)
    for thread, i in itertools.product(range(128), range(8)):
        warp, lane = divmod(thread, 32)
        row = 16 * warp + (lane >> 2) + (0 if i < 2 or 4 <= i < 6 else 8)
        column = lane % 4 * 2 + (i & 1) + (0 if i < 4 else 8)
        fragments[thread, i] = a[row, column]
    return fragments.view(torch.int16).numpy().view(np.uint32).ravel()


def accumulators_of(out: np.ndarray, columns: int) -> torch.Tensor:
    """C [64, columns] from the registers, by the formulas of wgmma's matrix D."""
    registers = out[: 64 * columns].view(np.float32).reshape(128, columns // 2)
    c = torch.empty(64, columns)
    for thread, i in itertools.product(range(128), range(columns // 2)):
        warp, lane = divmod(thread, 32)
        c[16 * warp + (lane >> 2) + 8 * (i // 2 % 2), i // 4 * 8 + lane % 4 * 2 + i % 2] = float(registers[thread, i])
    return c


def operands(columns, dtype):
    random = torch.Generator().manual_seed(columns)
    return torch.randn(64, 16, generator=random).to(dtype), torch.randn(columns, 16, generator=random).to(dtype)


def multiply(image, a, fragments, b, columns, transposed, choice=0):
    out = np.zeros(64 * columns, dtype=np.uint32)
    half = image.dtype == torch.float16
    probes.product(image.words(), a, fragments, b, columns, half, transposed, out, choice=choice)
    return accumulators_of(out, columns)


NO_FRAGMENTS = np.zeros(512, dtype=np.uint32)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("columns", [64, 80, 128, 256])
def test_a_product_of_shared_matrices(columns, dtype):
    a, b = operands(columns, dtype)
    image = Image(dtype)
    first = image.place_rows(a, 0, 128, leading=0, stride=1024)
    second = image.place_rows(b, 8192, 128, leading=0, stride=1024)
    expected = a.double() @ b.double().T
    for accumulate in (0, 1):
        c = multiply(image, first, NO_FRAGMENTS, second, columns, transposed=False, choice=accumulate)
        torch.testing.assert_close(c.double(), expected + accumulate, atol=2e-5, rtol=1e-5)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("columns", [64, 80, 128, 256])
def test_a_product_with_a_in_registers(columns, dtype):
    a, b = operands(columns, dtype)
    image = Image(dtype)
    second = image.place_rows(b, 0, 128, leading=0, stride=1024)
    c = multiply(image, None, fragments_of(a), second, columns, transposed=False)
    torch.testing.assert_close(c.double(), a.double() @ b.double().T, atol=2e-5, rtol=1e-5)


@pytest.mark.parametrize("swizzle_bytes", SWIZZLE_BYTES)
@pytest.mark.parametrize("transposed", [False, True])
def test_every_layout_that_a_descriptor_can_name(swizzle_bytes, transposed):
    """Offsets with gaps, so that no two of them can be exchanged unseen."""
    a, b = operands(128, torch.bfloat16)
    image = Image(torch.bfloat16, 64 * 1024)
    row_bytes = swizzle_bytes or 16
    first = image.place_rows(a, 0, swizzle_bytes, leading=4096, stride=16 * row_bytes)
    place = image.place_columns if transposed else image.place_rows
    if transposed and swizzle_bytes:
        second = place(b, 16 * 1024, swizzle_bytes, leading=16 * row_bytes + 1024, stride=8 * row_bytes + 8192)
    else:
        second = place(b, 16 * 1024, swizzle_bytes, leading=16384, stride=1024)
    c = multiply(image, first, NO_FRAGMENTS, second, 128, transposed)
    torch.testing.assert_close(c.double(), a.double() @ b.double().T, atol=2e-5, rtol=1e-5)


def test_a_start_inside_a_swizzled_row_takes_the_next_elements_of_it():
    """Four steps of 16 lie in one row of 128 bytes: the start moves by 32 bytes, the swizzle stays."""
    random = torch.Generator().manual_seed(0)
    a = torch.randn(64, 16, generator=random).bfloat16()
    wide = torch.randn(64, 64, generator=random).bfloat16()
    image = Image(torch.bfloat16)
    for row, chunk in itertools.product(range(64), range(8)):
        image._put(row * 128 + (chunk ^ row % 8) * 16, wide[row, 8 * chunk : 8 * chunk + 8])
    for step in range(4):
        b = descriptor(probes.DATA_AT + 32 * step, 0, 1024, 128)
        c = multiply(image, None, fragments_of(a), b, 64, transposed=False)
        expected = a.double() @ wide[:, 16 * step : 16 * step + 16].double().T
        torch.testing.assert_close(c.double(), expected, atol=2e-5, rtol=1e-5)


def test_a_pattern_that_begins_off_its_repetition_needs_the_base_offset():
    """The matrix begins 3 rows of 128 bytes into a repetition, and so does its pattern: chunks count from there."""
    a, b = operands(64, torch.bfloat16)
    image = Image(torch.bfloat16)
    image.place_rows(b, 384, 128, leading=0, stride=1024)
    start = probes.DATA_AT + 384
    c = multiply(image, None, fragments_of(a), descriptor(start, 0, 1024, 128, base_offset=3), 64, transposed=False)
    torch.testing.assert_close(c.double(), a.double() @ b.double().T, atol=2e-5, rtol=1e-5)


@pytest.mark.parametrize(
    ("choice", "message"),
    [
        (2, "wgmma: no fence.proxy.async lies between this access of the asynchronous proxy"),
        (3, "wgmma: race: no barrier lies between|wgmma: no fence.proxy.async"),
        (5, "wgmma: a batch begins without wgmma.fence"),
        (6, r"divergent warpgroup: warp \d has issued \d wgmma, another one \d"),
        (7, "overwrites shared memory that an unfinished wgmma is about to read"),
        (8, "wgmma: an accumulator was written while the product was unfinished"),
        (9, "the block has ended, and warp 0 has not waited for its wgmma"),
    ],
)
def test_a_careless_product_is_a_fault(choice, message):
    a, b = operands(64, torch.bfloat16)
    image = Image(torch.bfloat16, 16 * 1024)
    image.elements.fill_(0)
    second = image.place_rows(b, 0, 128, leading=0, stride=1024)
    with pytest.raises(probes.Fault, match=message):
        multiply(image, None, fragments_of(a), second, 64, transposed=False, choice=choice)


@pytest.mark.parametrize("choice", [10, 11])
def test_accumulators_are_nan_until_their_batch_is_waited_for(choice):
    a, b = operands(64, torch.bfloat16)
    image = Image(torch.bfloat16)
    second = image.place_rows(b, 0, 128, leading=0, stride=1024)
    c = multiply(image, None, fragments_of(a), second, 64, transposed=False, choice=choice)
    assert c.isnan().all()
