"""linear_blocks in float32 and dequantise_rows against the gguf package's own dequantisation and float64."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from cudaprefill import ops
from tests.ops import reference
from tests.ops.block_matrices import FORMATS, groups_of, random_blocks, values_of
from tests.ops.op_calls import right_arguments


def product(x: Tensor, blocks: Tensor, block_format: int, bias: Tensor | None = None) -> Tensor:
    return ops.linear_blocks(x, groups_of(blocks, block_format), block_format, blocks.shape[0], bias)


def check(num_rows: int, blocks: Tensor, block_format: int, bias: Tensor | None) -> None:
    """The error is a few roundings of the sum of the absolute values of all terms; a term that is lost is far more."""
    weight = values_of(blocks, block_format)
    x = torch.randn(num_rows, weight.shape[1])
    out = product(x, blocks, block_format, bias)
    error = (out.double() - reference.linear(x, weight, bias, torch.float64)).norm()
    terms = reference.linear(x.abs(), weight.abs(), bias.abs() if bias is not None else None, torch.float64)
    assert error <= 4 * torch.finfo(torch.float32).eps * terms.norm()


@pytest.mark.parametrize("block_format", FORMATS)
@pytest.mark.parametrize("num_rows", [1, 16, 40, 47])
def test_dequantised_rows_are_those_of_the_gguf_package(block_format: int, num_rows: int) -> None:
    blocks = random_blocks(block_format, num_rows, 768)
    row_ids = torch.tensor([num_rows - 1, 0, num_rows // 2, num_rows // 2, num_rows // 3])
    torch.testing.assert_close(
        ops.dequantise_rows(groups_of(blocks, block_format), block_format, num_rows, 768, row_ids),
        values_of(blocks, block_format)[row_ids],
        rtol=3e-7,
        atol=1e-9,
    )


@pytest.mark.parametrize("block_format", FORMATS)
@pytest.mark.parametrize("num_rows", [1, 2, 3, 4, 5, 8, 9, 12, 13, 24, 25, 40, 41, 64, 65, 200])
def test_sizes_of_a_small_model(num_rows: int, block_format: int) -> None:
    for num_outputs, num_inputs in [(960, 768), (576, 1536), (96, 3328)]:
        check(num_rows, random_blocks(block_format, num_outputs, num_inputs), block_format, None)


@settings(max_examples=150, deadline=None)
@given(
    num_rows=st.integers(0, 80),
    num_parts=st.integers(0, 5) | st.integers(45, 100),
    num_outputs=st.integers(0, 120),
    block_format=st.sampled_from(FORMATS),
    has_bias=st.booleans(),
)
def test_any_size(num_rows: int, num_parts: int, num_outputs: int, block_format: int, has_bias: bool) -> None:
    elements = ops.BLOCK_FORMATS[block_format].elements
    num_inputs = num_parts * elements if elements == 32 else (num_parts % 14) * elements
    blocks = random_blocks(block_format, num_outputs, num_inputs, seed=num_parts)
    check(num_rows, blocks, block_format, torch.randn(num_outputs) if has_bias else None)


@pytest.mark.parametrize("block_format", FORMATS)
@pytest.mark.parametrize("num_inputs", [256, 1536, 3328])
def test_a_row_gives_the_same_bits_in_any_company(block_format: int, num_inputs: int) -> None:
    blocks = random_blocks(block_format, 150, num_inputs)
    x, bias = torch.randn(70, num_inputs), torch.randn(150)
    together = product(x, blocks, block_format, bias)
    for count in (1, 2, 3, 4, 5, 9, 33):
        assert torch.equal(product(x[:count], blocks, block_format, bias), together[:count])


@pytest.mark.parametrize("num_rows", [1, 5, 30, 200])
def test_the_number_of_threads_changes_nothing(num_rows: int) -> None:
    x, blocks = torch.randn(num_rows, 576), random_blocks(3, 960, 576)
    threads = ops.num_threads()
    out = product(x, blocks, 3)
    try:
        for count in (1, 3, 8):
            ops.set_num_threads(count)
            assert torch.equal(product(x, blocks, 3), out)
    finally:
        ops.set_num_threads(threads)


@pytest.mark.parametrize("num_rows", [2, 5, 30, 100])
def test_a_row_of_nan_harms_no_other(num_rows: int) -> None:
    x, blocks = torch.randn(num_rows, 64), random_blocks(8, 50, 64)
    expected = product(x, blocks, 8)
    x[-1] = math.nan
    out = product(x, blocks, 8)
    assert torch.equal(out[:-1], expected[:-1])
    assert out[-1].isnan().all()


@pytest.mark.parametrize("bits", [32, 16, 8])
@pytest.mark.parametrize("num_rows", [1, 5, 30])
def test_rows_and_groups_that_do_not_adjoin(num_rows: int, bits: int) -> None:
    blocks = random_blocks(3, 90, 128)
    groups = torch.full((6, 4000), 0xFF, dtype=torch.uint8)[:, 700 : 700 + 16 * 80]
    ops.group_blocks(torch.nn.functional.pad(blocks, (7, 5))[:, 7:-5], 3, groups)
    x = torch.randn(num_rows, 200)[:, 20:148]
    expected = ops.linear_blocks(x.contiguous(), groups_of(blocks, 3), 3, 90, activation_bits=bits)
    assert torch.equal(ops.linear_blocks(x, groups, 3, 90, activation_bits=bits), expected)


@pytest.mark.parametrize("op", ["group_blocks", "linear_blocks", "gated_linear_blocks", "dequantise_rows"])
def test_an_unknown_format_is_refused_with_the_known_ones(op: str) -> None:
    with pytest.raises(ValueError, match=rf"{op}: block_format must be 2 \(Q4_0\), .*, got 7"):
        getattr(torch.ops.cudaprefill, op)(**{**right_arguments(op), "block_format": 7})


@pytest.mark.parametrize("op", ["linear_blocks", "gated_linear_blocks"])
def test_another_number_of_bits_is_refused(op: str) -> None:
    with pytest.raises(ValueError, match=f"{op}: activation_bits must be 8, 16 or 32, got 4"):
        getattr(torch.ops.cudaprefill, op)(**{**right_arguments(op), "activation_bits": 4})


def test_a_row_that_is_no_whole_number_of_blocks_is_refused_with_both_numbers() -> None:
    blocks = random_blocks(3, 4, 64)
    with pytest.raises(ValueError, match="a row has 40 elements, but blocks hold 32 of them each"):
        ops.linear_blocks(torch.randn(1, 40), groups_of(blocks, 3), 3, 4)
    with pytest.raises(ValueError, match="a row has 128 elements, but blocks hold 256 of them each"):
        ops.dequantise_rows(groups_of(blocks, 3), 12, 4, 128, torch.tensor([0]))
    with pytest.raises(ValueError, match="rows of 39 bytes, which must be whole blocks of 20"):
        ops.group_blocks(blocks[:, :39], 3, torch.zeros(1, 320, dtype=torch.uint8))


@pytest.mark.parametrize(
    ("op", "name"),
    [
        ("linear_blocks", "num_outputs"),
        ("gated_linear_blocks", "inner_size"),
        ("expert_mlp_blocks", "inner_size"),
        ("dequantise_rows", "num_rows"),
        ("dequantise_rows", "num_columns"),
    ],
)
@pytest.mark.parametrize(
    ("size", "bound"),
    [(-1, "at least 0"), (2**31, f"at most {2**31 - 1}"), (2**62, f"at most {2**31 - 1}"), (2**63 - 1, "at most")],
)
def test_a_size_that_is_none_is_refused(op: str, name: str, size: int, bound: str) -> None:
    with pytest.raises(ValueError, match=f"{op}: {name} must be {bound}.*, got {size}"):
        getattr(torch.ops.cudaprefill, op)(**{**right_arguments(op), name: size})


@pytest.mark.parametrize("row", [-1, 4])
def test_a_row_that_does_not_exist_is_refused_with_both_numbers(row: int) -> None:
    with pytest.raises(IndexError, match=rf"row_ids\[1\] is {row}, but the matrix has 4 rows"):
        ops.dequantise_rows(groups_of(random_blocks(3, 4, 64), 3), 3, 4, 64, torch.tensor([0, row]))
