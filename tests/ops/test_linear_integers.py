"""linear_blocks with activations of 8 and 16 bits, against NumPy's integers and float64."""

from __future__ import annotations

import math

import gguf
import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from cudaprefill import ops
from tests.ops import reference
from tests.ops.block_matrices import FORMATS, groups_of, random_blocks, values_of

PART = 32
BITS = [8, 16]
LARGEST = {8: 127, 16: 32767}


def product(bits: int, x: Tensor, blocks: Tensor, block_format: int, bias: Tensor | None = None) -> Tensor:
    return ops.linear_blocks(x, groups_of(blocks, block_format), block_format, blocks.shape[0], bias, bits)


def rounded(bits: int, x: Tensor) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]]:
    """q [T, parts, 32], whole numbers, and the scale [T, parts] of each part, computed in float32 as the op must."""
    parts = x.numpy().reshape(x.shape[0], x.shape[1] // PART, PART)
    largest = np.abs(parts).max(axis=2)
    with np.errstate(divide="ignore", invalid="ignore"):
        inverse = np.where(largest < 2.0**-100, np.float32(0), np.float32(LARGEST[bits]) / largest)
    q = np.rint(parts * inverse[:, :, None])
    assert np.abs(q).max(initial=0) <= LARGEST[bits]
    return q, np.where(largest < 2.0**-100, np.float32(0), largest / np.float32(LARGEST[bits]))


def check(bits: int, x: Tensor, blocks: Tensor, block_format: int, bias: Tensor | None) -> None:
    """The result is the product of the rounded activations, but for a few roundings of the sum of all terms."""
    weight = values_of(blocks, block_format)
    q, scale = rounded(bits, x)
    rounded_x = torch.from_numpy(q.astype(np.float64) * scale[:, :, None]).view(x.shape)
    out = product(bits, x, blocks, block_format, bias)
    error = (out.double() - reference.linear(rounded_x, weight, bias, torch.float64)).norm()
    terms = reference.linear(rounded_x.abs(), weight.abs(), bias.abs() if bias is not None else None, torch.float64)
    assert error <= 4 * torch.finfo(torch.float32).eps * terms.norm()
    # Each activation is off by half a step at most, so each output by the weights' sizes times that.
    half_steps = torch.from_numpy(np.repeat(scale / 2, PART, axis=1)).view(x.shape)
    exact = reference.linear(x, weight, bias, torch.float64)
    bound = reference.linear(half_steps, weight.abs(), None, torch.float64) + 1e-5 * terms
    assert ((out.double() - exact).abs() <= bound).all()


@pytest.mark.parametrize("block_format", FORMATS)
@pytest.mark.parametrize("bits", BITS)
@pytest.mark.parametrize("num_rows", [1, 2, 3, 4, 5, 8, 9, 65, 131])
def test_sizes_of_a_small_model(num_rows: int, bits: int, block_format: int) -> None:
    for num_outputs, num_inputs in [(960, 768), (576, 1536)]:
        blocks = random_blocks(block_format, num_outputs, num_inputs)
        check(bits, torch.randn(num_rows, num_inputs), blocks, block_format, None)


@settings(max_examples=150, deadline=None)
@given(
    num_rows=st.integers(0, 80),
    num_parts=st.integers(0, 5) | st.integers(15, 45),
    num_outputs=st.integers(0, 120),
    block_format=st.sampled_from(FORMATS),
    bits=st.sampled_from(BITS),
    has_bias=st.booleans(),
)
def test_any_size(
    num_rows: int, num_parts: int, num_outputs: int, block_format: int, bits: int, has_bias: bool
) -> None:
    elements = ops.BLOCK_FORMATS[block_format].elements
    num_inputs = num_parts * elements if elements == PART else (num_parts % 6) * elements
    blocks = random_blocks(block_format, num_outputs, num_inputs, seed=num_parts)
    x = torch.randn(num_rows, num_inputs) * 10.0 ** torch.randint(-4, 4, (num_rows, 1))
    check(bits, x, blocks, block_format, torch.randn(num_outputs) if has_bias else None)


def blocks_of_ones(block_format: int, num_rows: int, num_columns: int) -> tuple[Tensor, npt.NDArray[np.int64]]:
    """Random numbers in blocks whose scales are 1, and the matrix, which is whole."""
    form = ops.BLOCK_FORMATS[block_format]
    blocks = random_blocks(block_format, num_rows, num_columns).numpy().reshape(num_rows, -1, form.num_bytes)
    one = np.array([1.0], dtype=np.float16).view(np.uint8)
    for at in {"Q4_0": (0,), "Q4_1": (0, 2), "Q8_0": (0,), "Q4_K": (0, 2), "Q6_K": (208,)}[form.name]:
        blocks[:, :, at : at + 2] = one
    if form.name == "Q8_0":
        blocks[:, :, 2:8] = 0x80  # -128, which no quantisation makes, but a file may hold
    flat = blocks.reshape(num_rows, -1)
    values = gguf.quants.dequantize(flat, gguf.GGMLQuantizationType(block_format))
    assert (values == np.rint(values)).all()
    return torch.from_numpy(flat), values.astype(np.int64)


@pytest.mark.parametrize("block_format", FORMATS)
@pytest.mark.parametrize("num_rows", [1, 2, 7, 8, 9, 70])
@pytest.mark.parametrize("extreme", [False, True])
@pytest.mark.parametrize("bits", BITS)
def test_sums_of_integers_are_exact(bits: int, block_format: int, num_rows: int, extreme: bool) -> None:
    """With scales of 1 all that is computed is whole; where float32 holds it, any other result is wrong."""
    blocks, weight = blocks_of_ones(block_format, 50, 256)
    random = np.random.default_rng(0)
    most = LARGEST[bits]
    x = random.choice([-most, most], (num_rows, 256)) if extreme else random.integers(-most, most + 1, (num_rows, 256))
    x[:, ::PART] = most  # so that each part's scale is 1
    expected = x @ weight.T
    out = product(bits, torch.from_numpy(x).float(), blocks, block_format)
    if bits == 16 or block_format == 14:  # 16 bits, or its scales of 8, take the sums past 2^24: the last ones round
        terms = torch.from_numpy(np.abs(x) @ np.abs(weight.T)).double()
        assert ((out.double() - torch.from_numpy(expected)).abs() <= 2**-24 * 8 * terms).all()
    else:
        assert np.abs(expected).max() < 2**24
        assert torch.equal(out, torch.from_numpy(expected).float())


@settings(max_examples=40, deadline=None)
@given(
    block_format=st.sampled_from(FORMATS),
    bits=st.sampled_from(BITS),
    num_parts=st.sampled_from([8, 24, 48]),
    num_outputs=st.integers(1, 120),
    num_rows=st.integers(1, 90),
    data=st.data(),
)
def test_a_row_gives_the_same_bits_in_any_company(
    block_format: int, bits: int, num_parts: int, num_outputs: int, num_rows: int, data: st.DataObject
) -> None:
    blocks = random_blocks(block_format, num_outputs, num_parts * PART)
    x, bias = torch.randn(num_rows, num_parts * PART), torch.randn(num_outputs)
    together = product(bits, x, blocks, block_format, bias)
    first = data.draw(st.integers(0, num_rows - 1))
    last = data.draw(st.integers(first + 1, num_rows))
    assert torch.equal(product(bits, x[first:last], blocks, block_format, bias), together[first:last])


@pytest.mark.parametrize("bits", BITS)
@pytest.mark.parametrize("num_rows", [1, 5, 30, 300])
def test_the_number_of_threads_changes_nothing(num_rows: int, bits: int) -> None:
    x, blocks = torch.randn(num_rows, 576), random_blocks(3, 960, 576)
    threads = ops.num_threads()
    out = product(bits, x, blocks, 3)
    try:
        for count in (1, 2, 3, 8):
            ops.set_num_threads(count)
            assert torch.equal(product(bits, x, blocks, 3), out)
    finally:
        ops.set_num_threads(threads)


@pytest.mark.parametrize("block_format", FORMATS)
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("bits", BITS)
@pytest.mark.parametrize("num_rows", [2, 5, 100])
def test_a_row_with_no_number_in_it_gives_nan_and_harms_no_other(
    num_rows: int, bits: int, value: float, block_format: int
) -> None:
    x, blocks = torch.randn(num_rows, 256), random_blocks(block_format, 50, 256)
    expected = product(bits, x, blocks, block_format)
    x[-1, 77] = value
    out = product(bits, x, blocks, block_format)
    assert torch.equal(out[:-1], expected[:-1])
    assert out[-1].isnan().all()


@pytest.mark.parametrize("block_format", FORMATS)
@pytest.mark.parametrize("bits", BITS)
@pytest.mark.parametrize("num_rows", [1, 20])
def test_zeros_and_the_smallest_numbers_give_zeros(num_rows: int, bits: int, block_format: int) -> None:
    blocks = random_blocks(block_format, 50, 256)
    for value in (0.0, 1e-45, -1e-38, 7e-31):
        assert (product(bits, torch.full((num_rows, 256), value), blocks, block_format) == 0).all()
    check(bits, torch.randn(num_rows, 256) * 1e30, blocks, block_format, None)
