"""linear against float64, over the sizes where its kernels change shape."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from cudaprefill import ops
from tests.ops import reference
from tests.ops.reference import DTYPES

linear = torch.ops.cudaprefill.linear  # the op itself: at the plain level `ops.linear` leaves many rows to torch


def check(x: Tensor, weight: Tensor, bias: Tensor | None) -> None:
    """The error is a few roundings of the sum of the absolute values of all terms; a term that is lost is far more."""
    out = linear(x, weight, bias)
    assert out.dtype == torch.float32
    error = (out.double() - reference.linear(x, weight, bias, torch.float64)).norm()
    terms = reference.linear(x.abs(), weight.abs(), bias.abs() if bias is not None else None, torch.float64)
    assert error <= 4 * torch.finfo(torch.float32).eps * terms.norm()


@pytest.mark.parametrize("weight_dtype", DTYPES)
@pytest.mark.parametrize("num_rows", [1, 2, 6, 7, 12, 13, 24, 25, 64, 65, 200])
def test_sizes_of_a_small_model(num_rows: int, weight_dtype: torch.dtype) -> None:
    for num_outputs, num_inputs in [(960, 576), (576, 1536), (100, 3300)]:
        check(torch.randn(num_rows, num_inputs), torch.randn(num_outputs, num_inputs).to(weight_dtype), None)


@settings(max_examples=150, deadline=None)
@given(
    num_rows=st.integers(0, 80),
    num_inputs=st.integers(0, 130) | st.integers(1500, 3200),
    num_outputs=st.integers(0, 120),
    weight_dtype=st.sampled_from(DTYPES),
    has_bias=st.booleans(),
)
def test_any_size(num_rows: int, num_inputs: int, num_outputs: int, weight_dtype: torch.dtype, has_bias: bool) -> None:
    weight = torch.randn(num_outputs, num_inputs).to(weight_dtype)
    check(torch.randn(num_rows, num_inputs), weight, torch.randn(num_outputs) if has_bias else None)


@pytest.mark.parametrize("num_rows", [1, 5, 30, 100])
def test_rows_that_do_not_adjoin(num_rows: int) -> None:
    x = torch.randn(num_rows, 150)[:, 20:120]
    weight = torch.randn(90, 130)[:, 30:]
    check(x, weight, torch.randn(90))


@pytest.mark.parametrize("num_rows", [2, 5, 30, 100])
def test_a_row_of_nan_harms_no_other(num_rows: int) -> None:
    x, weight = torch.randn(num_rows, 70), torch.randn(50, 70)
    expected = linear(x, weight)
    x[-1] = math.nan
    out = linear(x, weight)
    assert torch.equal(out[:-1], expected[:-1])
    assert out[-1].isnan().all()


@pytest.mark.parametrize("num_rows", [1, 5, 30, 200, 777])
def test_the_number_of_threads_changes_nothing(num_rows: int) -> None:
    x, weight = torch.randn(num_rows, 576), torch.randn(960, 576)
    threads = ops.num_threads()
    out = linear(x, weight)
    try:
        for count in (1, 3, 8):
            ops.set_num_threads(count)
            assert torch.equal(linear(x, weight), out)
    finally:
        ops.set_num_threads(threads)


@pytest.mark.parametrize("weight_dtype", DTYPES)
@pytest.mark.parametrize("num_rows", [1, 7, 8, 40])
def test_the_python_function_gives_what_the_op_gives(num_rows: int, weight_dtype: torch.dtype) -> None:
    x, weight, bias = torch.randn(num_rows, 96), torch.randn(50, 96).to(weight_dtype), torch.randn(50)
    torch.testing.assert_close(ops.linear(x, weight, bias), linear(x, weight, bias), rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(ops.linear(x, weight), linear(x, weight), rtol=1e-4, atol=1e-4)
