"""rms_norm and add_rms_norm against float64."""

from __future__ import annotations

import math

import pytest
import torch

from cudaprefill import ops
from tests.ops import reference
from tests.ops.reference import DTYPES, assert_as_exact_as_torch

SIZES = [1, 7, 16, 64, 576, 577, 4096]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("hidden_size", SIZES)
@pytest.mark.parametrize("num_rows", [1, 40])
def test_rms_norm(dtype: torch.dtype, hidden_size: int, num_rows: int) -> None:
    x = (3 * torch.randn(num_rows, hidden_size)).to(dtype)
    weight = torch.randn(hidden_size).to(dtype)
    out = ops.rms_norm(x, weight, 1e-5)
    assert out.dtype == dtype
    assert_as_exact_as_torch(out, lambda exactness: reference.rms_norm(x, weight, 1e-5, exactness), dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("hidden_size", SIZES)
@pytest.mark.parametrize("num_rows", [1, 40])
def test_add_rms_norm(dtype: torch.dtype, hidden_size: int, num_rows: int) -> None:
    x, residual = torch.randn(2, num_rows, hidden_size).to(dtype)
    weight = torch.randn(hidden_size).to(dtype)
    total = residual + x
    out = ops.add_rms_norm(x, residual, weight, 1e-5)
    assert torch.equal(residual, total)
    assert_as_exact_as_torch(out, lambda exactness: reference.rms_norm(total, weight, 1e-5, exactness), dtype)


def test_rows_that_do_not_adjoin() -> None:
    x = torch.randn(5, 100)[:, 10:74]
    residual = torch.randn(5, 80)[:, :64]
    total, weight = residual + x, torch.randn(64)
    out = ops.add_rms_norm(x, residual, weight, 1e-5)
    assert torch.equal(residual, total)
    assert out.is_contiguous()
    assert_as_exact_as_torch(out, lambda exactness: reference.rms_norm(total, weight, 1e-5, exactness), torch.float32)


def test_a_row_of_zeros_stays_zero() -> None:
    assert torch.equal(ops.rms_norm(torch.zeros(2, 576), torch.ones(576), 1e-6), torch.zeros(2, 576))


def test_a_row_of_nan_harms_no_other() -> None:
    x = torch.randn(4, 576)
    expected = ops.rms_norm(x, torch.ones(576), 1e-6)
    x[3] = math.nan
    assert torch.equal(ops.rms_norm(x, torch.ones(576), 1e-6)[:3], expected[:3])


def test_no_rows() -> None:
    assert ops.rms_norm(torch.empty(0, 576), torch.ones(576), 1e-6).shape == (0, 576)
    assert ops.add_rms_norm(torch.empty(0, 576), torch.empty(0, 576), torch.ones(576), 1e-6).shape == (0, 576)
