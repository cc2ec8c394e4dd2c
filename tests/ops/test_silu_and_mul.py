"""silu_and_mul against float64."""

from __future__ import annotations

import math

import pytest
import torch

from cudaprefill import ops
from tests.ops import reference
from tests.ops.reference import DTYPES, assert_as_exact_as_torch


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", [1, 7, 16, 1536, 1537])
@pytest.mark.parametrize("num_rows", [1, 40])
def test_silu_and_mul(dtype: torch.dtype, size: int, num_rows: int) -> None:
    x = (4 * torch.randn(num_rows, 2 * size)).to(dtype)
    out = ops.silu_and_mul(x)
    assert out.dtype == dtype
    assert_as_exact_as_torch(out, lambda exactness: reference.silu_and_mul(x, exactness), dtype)


def test_each_gate_to_a_few_units_in_the_last_place() -> None:
    gate = torch.cat([torch.linspace(-87, 87, 100_001), torch.linspace(-1e-3, 1e-3, 1001)])
    out = ops.silu_and_mul(torch.cat([gate, torch.ones_like(gate)])[None])[0]
    exact = reference.silu_and_mul(torch.cat([gate, torch.ones_like(gate)]), torch.float64)
    error = ((out.double() - exact) / exact).nan_to_num()
    assert error.abs().max() < 4 * torch.finfo(torch.float32).eps


def test_gates_beyond_the_range_of_the_exponential() -> None:
    gate = torch.tensor([-math.inf, -3e38, -1000.0, -104.0, -89.0, 0.0, 89.0, 104.0, 1000.0, 3e38, math.inf, math.nan])
    out = ops.silu_and_mul(torch.cat([gate, torch.ones_like(gate)])[None])[0]
    assert out[0].isnan()  # -inf * 0, as in torch
    assert (out[1:5].abs() < 1e-35).all()
    assert torch.equal(out[5:11], gate[5:11])
    assert out[11].isnan()


def test_rows_that_do_not_adjoin() -> None:
    x = torch.randn(5, 100)[:, 10:74]
    out = ops.silu_and_mul(x)
    assert out.is_contiguous()
    assert_as_exact_as_torch(out, lambda exactness: reference.silu_and_mul(x, exactness), torch.float32)


def test_no_rows() -> None:
    assert ops.silu_and_mul(torch.empty(0, 3072)).shape == (0, 1536)
