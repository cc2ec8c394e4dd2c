"""mixed_attention against float64: decodes first, then chunks, in one call."""

from __future__ import annotations

import math

import pytest
import torch

from tests.ops.attention_calls import attend
from tests.ops.attention_reference import assert_as_exact_as_torch, paged_batch

DTYPES = [torch.float32, torch.bfloat16, torch.float16]


@pytest.mark.parametrize("dtype", DTYPES)
def test_decodes_and_chunks_see_what_they_would_alone(dtype: torch.dtype) -> None:
    batch = paged_batch([1, 1, 1, 40, 3], [300, 1, 17, 140, 3], dtype=dtype, kv_dtype=dtype)
    assert_as_exact_as_torch(attend(batch, 3), batch)


@pytest.mark.parametrize("num_decodes", [0, 1, 3])
def test_a_step_of_one_kind_and_chunks_of_one_token(num_decodes: int) -> None:
    batch = paged_batch([1, 1, 1], [300, 1, 17])
    assert_as_exact_as_torch(attend(batch, num_decodes), batch)


@pytest.mark.parametrize("window", [1, 30])
def test_a_window_and_a_soft_cap(window: int) -> None:
    batch = paged_batch([1, 1, 50], [300, 20, 140], spread=4.0)
    assert_as_exact_as_torch(attend(batch, 2, window, softcap=5.0), batch, window, softcap=5.0)


def test_nan_in_a_decode_stays_in_that_decode() -> None:
    batch = paged_batch([1, 1, 20], [40, 8, 50])
    expected = attend(batch, 2)
    batch.q[1] = math.nan
    out = attend(batch, 2)
    assert out[1].isnan().all()
    assert torch.equal(out[[0, *range(2, 22)]], expected[[0, *range(2, 22)]])


@pytest.mark.parametrize("num_decodes", [-1, 3])
def test_more_decodes_than_requests_are_refused(num_decodes: int) -> None:
    batch = paged_batch([1, 4], [20, 30])
    with pytest.raises(ValueError, match=f"num_decodes must be at least 0 .* of rows of q, 2, got {num_decodes}"):
        attend(batch, num_decodes)
