"""silu_and_mul and gelu_tanh_and_mul against float64."""

from __future__ import annotations

import math

import pytest
import torch

from cudaprefill import ops
from tests.ops import reference
from tests.ops.reference import DTYPES, assert_as_exact_as_torch

OPS = ["silu_and_mul", "gelu_tanh_and_mul"]


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", [1, 7, 16, 1536, 1537])
@pytest.mark.parametrize("num_rows", [1, 40])
def test_every_dtype_and_size(op: str, dtype: torch.dtype, size: int, num_rows: int) -> None:
    x = (4 * torch.randn(num_rows, 2 * size)).to(dtype)
    out = getattr(ops, op)(x)
    assert out.dtype == dtype
    assert_as_exact_as_torch(out, lambda exactness: getattr(reference, op)(x, exactness), dtype)


# The exponent of the tanh form is itself rounded, so far out its relative error is that of a few times 20.
@pytest.mark.parametrize(("op", "reach", "units"), [("silu_and_mul", 87, 4), ("gelu_tanh_and_mul", 5, 24)])
def test_each_gate_to_a_few_units_in_the_last_place(op: str, reach: float, units: int) -> None:
    gate = torch.cat([torch.linspace(-reach, 87, 100_001), torch.linspace(-1e-3, 1e-3, 1001)])
    out = getattr(ops, op)(torch.cat([gate, torch.ones_like(gate)])[None])[0]
    exact = getattr(reference, op)(torch.cat([gate, torch.ones_like(gate)]), torch.float64)
    error = ((out.double() - exact) / exact).nan_to_num()
    assert error.abs().max() < units * torch.finfo(torch.float32).eps


@pytest.mark.parametrize("op", OPS)
def test_gates_beyond_the_range_of_the_exponential(op: str) -> None:
    gate = torch.tensor([-math.inf, -3e38, -1000.0, -104.0, -89.0, 0.0, 89.0, 104.0, 1000.0, 3e38, math.inf, math.nan])
    out = getattr(ops, op)(torch.cat([gate, torch.ones_like(gate)])[None])[0]
    assert out[0].isnan()  # -inf * 0, as in torch
    assert (out[1:5].abs() < 1e-35).all()
    assert torch.equal(out[5:11], gate[5:11])
    assert out[11].isnan()


@pytest.mark.parametrize("op", OPS)
def test_rows_that_do_not_adjoin(op: str) -> None:
    x = torch.randn(5, 100)[:, 10:74]
    out = getattr(ops, op)(x)
    assert out.is_contiguous()
    assert_as_exact_as_torch(out, lambda exactness: getattr(reference, op)(x, exactness), torch.float32)


@pytest.mark.parametrize("op", OPS)
def test_no_rows(op: str) -> None:
    assert getattr(ops, op)(torch.empty(0, 3072)).shape == (0, 1536)
