"""gated_linear and gated_linear_blocks: the bits of linear and the activation one after the other, and float64."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from cudaprefill import ops
from cudaprefill.models.block_matrix import BlockMatrix, BlockRows
from cudaprefill.models.linear import Linear
from tests.ops import reference
from tests.ops.block_matrices import FORMATS, groups_of, random_blocks, values_of
from tests.ops.op_calls import right_arguments
from tests.ops.reference import DTYPES

# The ops themselves: at the plain level the functions of `ops` leave many rows of float32 to torch.
linear, gated_linear = torch.ops.cudaprefill.linear, torch.ops.cudaprefill.gated_linear

ACTIVATIONS = ["silu", "gelu_tanh"]


def check(x: Tensor, gate_up: Tensor, bias: Tensor | None, activation: str) -> None:
    expected = ops.activate_and_mul(linear(x, gate_up, bias), activation)
    del_poisoned(expected)
    out = gated_linear(x, gate_up, activation, bias)
    assert out.is_contiguous()
    torch.testing.assert_close(out, expected, rtol=0, atol=0, equal_nan=True)


def check_blocks(
    x: Tensor, groups: Tensor, block_format: int, size: int, bias: Tensor | None, activation: str, bits: int
) -> None:
    expected = ops.activate_and_mul(ops.linear_blocks(x, groups, block_format, 2 * size, bias, bits), activation)
    del_poisoned(expected)
    out = ops.gated_linear_blocks(x, groups, block_format, size, activation, bias, bits)
    torch.testing.assert_close(out, expected, rtol=0, atol=0, equal_nan=True)


def del_poisoned(like: Tensor) -> None:
    """Frees memory full of NaN that the allocator is then likely to hand out for an output of this size."""
    torch.full_like(like, math.nan)


@pytest.mark.parametrize("weight_dtype", DTYPES)
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_numbers_of_rows(weight_dtype: torch.dtype, activation: str) -> None:
    for size, num_inputs in [(160, 576), (97, 100), (48, 3300)]:
        gate_up, bias = torch.randn(2 * size, num_inputs).to(weight_dtype), torch.randn(2 * size)
        for num_rows in (1, 2, 7, 8, 9, 12, 13, 24, 25, 64, 65, 150, 600):
            check(torch.randn(num_rows, num_inputs), gate_up, bias, activation)
            check(torch.randn(num_rows, num_inputs), gate_up, None, activation)


@pytest.mark.parametrize("bits", [32, 16, 8])
@pytest.mark.parametrize("block_format", FORMATS)
def test_numbers_of_rows_with_weights_in_blocks(block_format: int, bits: int) -> None:
    for size, num_inputs in [(160, 768), (97, 256), (48, 3328)]:
        groups, bias = groups_of(random_blocks(block_format, 2 * size, num_inputs), block_format), torch.randn(2 * size)
        for num_rows in (1, 2, 8, 9, 24, 65, 150, 600):
            x = torch.randn(num_rows, num_inputs)
            check_blocks(x, groups, block_format, size, bias, "silu", bits)
            check_blocks(x, groups, block_format, size, None, "gelu_tanh", bits)


@settings(max_examples=150, deadline=None)
@given(
    num_rows=st.integers(0, 80),
    num_inputs=st.integers(0, 130) | st.integers(1500, 3200),
    size=st.integers(0, 110),
    weight_dtype=st.sampled_from(DTYPES),
    activation=st.sampled_from(ACTIVATIONS),
    has_bias=st.booleans(),
)
def test_any_size(
    num_rows: int, num_inputs: int, size: int, weight_dtype: torch.dtype, activation: str, has_bias: bool
) -> None:
    gate_up = torch.randn(2 * size, num_inputs).to(weight_dtype)
    check(torch.randn(num_rows, num_inputs), gate_up, torch.randn(2 * size) if has_bias else None, activation)


@settings(max_examples=100, deadline=None)
@given(
    num_rows=st.integers(0, 80),
    num_parts=st.integers(0, 5) | st.integers(45, 100),
    size=st.integers(0, 110) | st.sampled_from([16, 48, 96]),
    block_format=st.sampled_from(FORMATS),
    activation=st.sampled_from(ACTIVATIONS),
    has_bias=st.booleans(),
    bits=st.sampled_from([32, 16, 8]),
)
def test_any_size_with_weights_in_blocks(
    num_rows: int, num_parts: int, size: int, block_format: int, activation: str, has_bias: bool, bits: int
) -> None:
    elements = ops.BLOCK_FORMATS[block_format].elements
    num_inputs = num_parts * elements if elements == 32 else (num_parts % 14) * elements
    groups = groups_of(random_blocks(block_format, 2 * size, num_inputs, seed=num_parts), block_format)
    bias = torch.randn(2 * size) if has_bias else None
    check_blocks(torch.randn(num_rows, num_inputs), groups, block_format, size, bias, activation, bits)


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("num_rows", [1, 5, 100])
def test_against_float64(num_rows: int, activation: str) -> None:
    x, gate_up, bias = torch.randn(num_rows, 900), torch.randn(2 * 70, 900) / 30, torch.randn(2 * 70)
    in_blocks = random_blocks(3, 2 * 70, 768)
    activate = getattr(reference, f"{activation}_and_mul")
    for out, weight in [
        (gated_linear(x, gate_up, activation, bias), gate_up),
        (
            ops.gated_linear_blocks(x[:, :768], groups_of(in_blocks, 3), 3, 70, activation, bias),
            values_of(in_blocks, 3),
        ),
    ]:
        product = reference.linear(x[:, : weight.shape[1]], weight, bias, torch.float64)
        error = (out.double() - activate(product, torch.float64)).norm()
        assert error <= 1e-6 * product.norm() * product.abs().max()


@pytest.mark.parametrize("num_rows", [1, 5, 30, 100])
def test_rows_that_do_not_adjoin(num_rows: int) -> None:
    x = torch.randn(num_rows, 150)[:, 20:120]
    check(x, torch.randn(90, 130)[:, 30:], torch.randn(90), "silu")


@pytest.mark.parametrize("num_rows", [2, 5, 30, 100])
def test_a_row_of_nan_harms_no_other(num_rows: int) -> None:
    x, gate_up = torch.randn(num_rows, 800), torch.randn(50, 800)
    expected = gated_linear(x, gate_up, "silu")
    x[-1] = math.nan
    out = gated_linear(x, gate_up, "silu")
    assert torch.equal(out[:-1], expected[:-1])
    assert out[-1].isnan().all()


@pytest.mark.parametrize("weight_dtype", DTYPES)
@pytest.mark.parametrize("num_rows", [1, 7, 8, 40])
def test_the_python_function_gives_what_the_op_gives(num_rows: int, weight_dtype: torch.dtype) -> None:
    x, gate_up, bias = torch.randn(num_rows, 96), torch.randn(50, 96).to(weight_dtype), torch.randn(50)
    for activation in ACTIVATIONS:
        expected = gated_linear(x, gate_up, activation, bias)
        torch.testing.assert_close(ops.gated_linear(x, gate_up, activation, bias), expected, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("op", ["gated_linear", "gated_linear_blocks"])
def test_another_activation_is_refused_with_the_known_ones(op: str) -> None:
    with pytest.raises(ValueError, match=f"{op}: activation must be silu or gelu_tanh, got relu"):
        getattr(torch.ops.cudaprefill, op)(**{**right_arguments(op), "activation": "relu"})


@pytest.mark.parametrize("num_rows", [1, 40])
def test_the_python_functions_refuse_another_activation_whatever_op_they_take(num_rows: int) -> None:
    x, gate_up = torch.randn(num_rows, 64), torch.randn(96, 64)
    both = [BlockRows(groups_of(random_blocks(f, 48, 64), f), f, 48) for f in (3, 8)]
    for call in (
        lambda: ops.activate_and_mul(x, "relu"),
        lambda: ops.gated_linear(x, gate_up, "relu"),
        lambda: BlockMatrix(tuple(both), 64, 32).gated_linear(x, None, "relu"),
        lambda: Linear().gated(x, gate_up, None, "relu"),
    ):
        with pytest.raises(ValueError, match="activation must be silu or gelu_tanh, got relu"):
            call()


def test_an_odd_number_of_rows_cannot_be_gate_and_up() -> None:
    with pytest.raises(ValueError, match="gated_linear: gate_up must have an even number of rows, got 41"):
        gated_linear(torch.randn(1, 48), torch.randn(41, 48), "silu")
