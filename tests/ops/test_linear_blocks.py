"""linear_blocks and dequantise_rows against the gguf package's own dequantisation and float64."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from cudaprefill import ops
from tests.ops import reference
from tests.ops.block_matrices import FORMATS, random_blocks, values_of


def check(num_rows: int, blocks: torch.Tensor, block_format: int, bias: torch.Tensor | None) -> None:
    """The error is a few roundings of the sum of the absolute values of all terms; a term that is lost is far more."""
    weight = values_of(blocks, block_format)
    x = torch.randn(num_rows, weight.shape[1])
    error = (
        ops.linear_blocks(x, blocks, block_format, bias).double() - reference.linear(x, weight, bias, torch.float64)
    ).norm()
    terms = reference.linear(x.abs(), weight.abs(), bias.abs() if bias is not None else None, torch.float64)
    assert error <= 4 * torch.finfo(torch.float32).eps * terms.norm()


@pytest.mark.parametrize("block_format", FORMATS)
def test_dequantised_rows_are_those_of_the_gguf_package(block_format: int) -> None:
    blocks = random_blocks(block_format, 40, 768)
    row_ids = torch.tensor([39, 0, 7, 7, 12])
    torch.testing.assert_close(
        ops.dequantise_rows(blocks, block_format, row_ids),
        values_of(blocks, block_format)[row_ids],
        rtol=3e-7,
        atol=1e-9,
    )


@pytest.mark.parametrize("block_format", FORMATS)
@pytest.mark.parametrize("num_rows", [1, 2, 6, 7, 12, 13, 24, 25, 40, 41, 64, 65, 200])
def test_sizes_of_a_small_model(num_rows: int, block_format: int) -> None:
    for num_outputs, num_inputs in [(960, 768), (576, 1536)]:
        check(num_rows, random_blocks(block_format, num_outputs, num_inputs), block_format, None)


@settings(max_examples=150, deadline=None)
@given(
    num_rows=st.integers(0, 80),
    num_parts=st.integers(0, 5) | st.integers(15, 35),
    num_outputs=st.integers(0, 120),
    block_format=st.sampled_from(FORMATS),
    has_bias=st.booleans(),
)
def test_any_size(num_rows: int, num_parts: int, num_outputs: int, block_format: int, has_bias: bool) -> None:
    elements = ops.BLOCK_FORMATS[block_format].elements
    num_inputs = num_parts * elements if elements == 32 else (num_parts % 6) * elements
    blocks = random_blocks(block_format, num_outputs, num_inputs, seed=num_parts)
    check(num_rows, blocks, block_format, torch.randn(num_outputs) if has_bias else None)


@pytest.mark.parametrize("num_rows", [1, 5, 30, 200])
def test_the_number_of_threads_changes_nothing(num_rows: int) -> None:
    x, blocks = torch.randn(num_rows, 576), random_blocks(3, 960, 576)
    threads = ops.num_threads()
    out = ops.linear_blocks(x, blocks, 3)
    try:
        for count in (1, 3, 8):
            ops.set_num_threads(count)
            assert torch.equal(ops.linear_blocks(x, blocks, 3), out)
    finally:
        ops.set_num_threads(threads)


@pytest.mark.parametrize("num_rows", [2, 5, 30, 100])
def test_a_row_of_nan_harms_no_other(num_rows: int) -> None:
    x, blocks = torch.randn(num_rows, 64), random_blocks(8, 50, 64)
    expected = ops.linear_blocks(x, blocks, 8)
    x[-1] = math.nan
    out = ops.linear_blocks(x, blocks, 8)
    assert torch.equal(out[:-1], expected[:-1])
    assert out[-1].isnan().all()


@pytest.mark.parametrize("num_rows", [1, 5, 30])
def test_rows_that_do_not_adjoin(num_rows: int) -> None:
    blocks = random_blocks(3, 90, 160)
    x = torch.randn(num_rows, 200)[:, 20:148]
    weight = values_of(blocks, 3)[:, 32:]
    out = ops.linear_blocks(x, blocks[:, 20:], 3)
    torch.testing.assert_close(out, reference.linear(x, weight, None, torch.float64).float(), rtol=1e-4, atol=1e-4)


def test_an_unknown_format_is_refused_with_the_known_ones() -> None:
    blocks = random_blocks(3, 4, 32)
    with pytest.raises(ValueError, match=r"linear_blocks: block_format must be 2 \(Q4_0\), .*, got 7"):
        torch.ops.cudaprefill.linear_blocks(torch.randn(1, 32), blocks, 7)


def test_a_row_that_is_no_whole_number_of_blocks_is_refused_with_both_numbers() -> None:
    blocks = random_blocks(3, 4, 64)
    with pytest.raises(ValueError, match="x has 40 columns, but blocks hold 32 elements"):
        ops.linear_blocks(torch.randn(1, 40), blocks, 3)
    with pytest.raises(ValueError, match="rows of 39 bytes, which must be whole blocks of 20"):
        ops.dequantise_rows(blocks[:, :39], 3, torch.tensor([0]))


@pytest.mark.parametrize("row", [-1, 4])
def test_a_row_that_does_not_exist_is_refused_with_both_numbers(row: int) -> None:
    with pytest.raises(IndexError, match=rf"row_ids\[1\] is {row}, but the matrix has 4 rows"):
        ops.dequantise_rows(random_blocks(3, 4, 64), 3, torch.tensor([0, row]))
