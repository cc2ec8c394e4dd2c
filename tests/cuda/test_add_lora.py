"""The kernels of add_lora against float64, at the sizes where they differ inside."""

from __future__ import annotations

import pytest
import torch

from cudaprefill import ops
from tests.ops.lora_cases import LoraCase, lora_case
from tests.ops.reference import assert_as_exact_as_torch

DTYPES = (torch.float32, torch.bfloat16, torch.float16)


@pytest.fixture
def device(backend: str) -> str:
    """Where the matrices must lie that the tables name by their addresses."""
    return "cuda" if backend == "cuda" else "cpu"


def check(case: LoraCase) -> None:
    out = case.run()
    rows = sorted(row for rows in case.rows for row in rows)
    assert torch.equal(out[case.base_rows], case.out[case.base_rows]), "base rows"
    assert_as_exact_as_torch(out[rows], lambda dtype: case.compute(dtype)[rows], case.out.dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("rank", [1, 7, 8, 9, 15, 16, 17, 31, 32, 33, 48, 63, 64])
def test_ranks(device, rank, dtype):
    check(lora_case([[rank]], [3], dtype=dtype, device=device))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("num_rows", [1, 15, 16, 17, 63, 64, 65, 130])
def test_numbers_of_rows(device, num_rows, dtype):
    check(lora_case([[8]], [num_rows], dtype=dtype, device=device))


@pytest.mark.parametrize("dtype", DTYPES)
def test_fused_layers_of_a_small_model(device, dtype):
    for num_inputs, parts in [(576, (576, 192, 192)), (1536, (576,)), (264, (296, 296))]:
        ranks = [[16] * len(parts), [8] * len(parts), [33] * len(parts)]
        check(lora_case(ranks, [20, 1, 2], num_inputs=num_inputs, part_outputs=parts, dtype=dtype, device=device))


@pytest.mark.parametrize("dtype", DTYPES)
def test_adapters_that_leave_parts_alone_and_adapters_without_rows(device, dtype):
    ranks = [[8, 8, 8], [4, 0, 8], [64, 64, 64], [0, 3, 0], [0, 0, 0]]
    check(lora_case(ranks, [0, 4, 0, 18, 3], part_outputs=(72, 32, 48), dtype=dtype, device=device))


@pytest.mark.parametrize("dtype", DTYPES)
def test_more_adapters_than_a_warp_looks_at_once(device, dtype):
    rows = [(7 * i) % 4 for i in range(70)]
    check(lora_case([[1 + i % 9] for i in range(70)], rows, dtype=dtype, device=device))


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_row_of_nan_harms_no_other(device, dtype):
    case = lora_case([[12]], [20], dtype=dtype, device=device)
    expected = case.run()
    case.x[case.rows[0][4]] = torch.nan
    out = case.run()
    others = [row for row in range(out.shape[0]) if row != case.rows[0][4]]
    assert torch.equal(out[others], expected[others])
    assert out[case.rows[0][4]].isnan().all()


def test_nothing_to_do(device):
    check(lora_case([], [], base_rows=3, device=device))
    check(lora_case([[8]], [0], base_rows=2, device=device))


def test_rows_far_beyond_32_bit_offsets(emulated):
    wide = torch.empty(3, 2**31 // 2 + 64, dtype=torch.bfloat16)
    case = lora_case([[16]], [2], base_rows=1, dtype=torch.bfloat16)
    x, out = wide[:, :48], wide[:, 64:160]
    x.copy_(case.x)
    out.copy_(case.out)
    check(LoraCase(out, x, case.rows, case.adapters, case.stored))


@pytest.mark.parametrize(
    ("num_inputs", "num_outputs", "message"),
    [
        (50, 96, "add_lora: num_inputs must be a multiple of 8, got 50"),
        (48, 92, "add_lora: num_outputs must be a multiple of 8, got 92"),
    ],
)
def test_what_16_byte_accesses_cannot_reach_is_refused_by_name(backend, num_inputs, num_outputs, message):
    x, out = torch.zeros(2, num_inputs).bfloat16(), torch.zeros(2, num_outputs).bfloat16()
    none, starts = torch.empty(0, dtype=torch.int32), torch.zeros(1, dtype=torch.int32)
    with pytest.raises(Exception, match=message):
        ops.add_lora(out, x, none, starts, torch.empty(0, 1, 6, dtype=torch.int64), torch.empty(0, 1))
