"""add_lora against float64, over the sizes where its kernel changes shape."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from cudaprefill import ops
from tests.ops.lora_cases import LoraCase, lora_case
from tests.ops.op_calls import right_arguments
from tests.ops.reference import DTYPES, assert_as_exact_as_torch


def check(case: LoraCase, dtype: torch.dtype = torch.float32) -> None:
    out = case.run()
    rows = sorted(row for rows in case.rows for row in rows)
    assert torch.equal(out[case.base_rows], case.out[case.base_rows])
    assert_as_exact_as_torch(out[rows], lambda exactness: case.compute(exactness)[rows], dtype)


@pytest.mark.parametrize("rank", range(1, ops.MAX_LORA_RANK + 1))
def test_every_rank(rank: int) -> None:
    check(lora_case([[rank]], [3]))


@pytest.mark.parametrize("num_rows", [1, 2, 5, 6, 7, 47, 48, 49, 200])
def test_any_number_of_rows(num_rows: int) -> None:
    check(lora_case([[16]], [num_rows]))


@pytest.mark.parametrize("dtype", DTYPES)
def test_sizes_of_a_small_model_in_every_dtype(dtype: torch.dtype) -> None:
    for num_inputs, parts in [(576, (576, 192, 192)), (576, (576,)), (576, (1536, 1536)), (1536, (576,))]:
        ranks = [[16] * len(parts), [8] * len(parts), [33] * len(parts)]
        check(lora_case(ranks, [20, 1, 2], num_inputs=num_inputs, part_outputs=parts, dtype=dtype), dtype)


def test_adapters_stored_in_different_precisions() -> None:
    check(lora_case([[8], [8], [8]], [3, 4, 5], weight_dtypes=DTYPES))


def test_an_adapter_may_leave_parts_alone() -> None:
    case = lora_case([[4, 0, 8], [0, 3, 0], [0, 0, 0]], [4, 5, 3], part_outputs=(70, 33, 50))
    out = case.run()
    assert torch.equal(out[case.rows[0], 70:103], case.out[case.rows[0], 70:103])
    assert torch.equal(out[case.rows[1], :70], case.out[case.rows[1], :70])
    assert torch.equal(out[case.rows[2]], case.out[case.rows[2]])
    check(case)


def test_adapters_without_rows_are_not_read() -> None:
    check(lora_case([[8], [8], [8]], [0, 3, 0]))


@settings(max_examples=100, deadline=None)
@given(
    adapters=st.lists(
        st.tuples(st.lists(st.integers(0, 64), min_size=2, max_size=2), st.integers(0, 60)), min_size=0, max_size=6
    ),
    num_inputs=st.integers(1, 130),
    part_outputs=st.tuples(st.integers(1, 150), st.integers(1, 150)),
    seed=st.integers(0, 1000),
)
def test_any_batch(
    adapters: list[tuple[list[int], int]], num_inputs: int, part_outputs: tuple[int, int], seed: int
) -> None:
    ranks, rows = [ranks for ranks, _ in adapters], [count for _, count in adapters]
    check(lora_case(ranks, rows, num_inputs=num_inputs, part_outputs=part_outputs, seed=seed))


@pytest.mark.parametrize("rows", [[1], [3], [2, 2, 2], [200], [60, 1, 2]])
def test_the_number_of_threads_changes_nothing(rows: list[int]) -> None:
    case = lora_case([[19, 7]] * len(rows), rows, num_inputs=576, part_outputs=(1000, 90))
    threads = ops.num_threads()
    try:
        results = []
        for count in (1, 3, 8):
            ops.set_num_threads(count)
            results.append(case.run())
    finally:
        ops.set_num_threads(threads)
    assert torch.equal(results[0], results[1])
    assert torch.equal(results[0], results[2])


def test_a_row_gets_the_same_whatever_shares_the_batch() -> None:
    case = lora_case([[16], [8]], [30, 9], num_inputs=576, part_outputs=(960,))
    together = case.run()
    for row in case.rows[0]:
        alone = LoraCase(case.out, case.x, [[row], []], case.adapters, case.stored).run()
        assert torch.equal(alone[row], together[row])


def test_a_row_of_nan_harms_no_other() -> None:
    case = lora_case([[16]], [13])
    expected = case.run()
    case.x[case.rows[0][4]] = torch.nan
    out = case.run()
    others = [row for row in range(out.shape[0]) if row != case.rows[0][4]]
    assert torch.equal(out[others], expected[others])
    assert out[case.rows[0][4]].isnan().all()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"row_ids": (1, 5)}, "row_ids[1] is 5, but out has 5 rows"),
        ({"row_ids": (0, -1)}, "row_ids[0] is -1, but out has 5 rows"),
        ({"row_starts": (3, 4)}, "row_starts[2] .. is 1, 4, but there are 3 row_ids"),
        ({"row_starts": (1, 2)}, "row_starts[1] .. is 2, 1, but there are 3 row_ids"),
        ({"parts": ((0, 1, 2), 65)}, "parts[0, 1] has rank 65, but ranks are 0 .. 64"),
        ({"parts": ((2, 0, 2), -1)}, "parts[2, 0] has rank -1, but ranks are 0 .. 64"),
        ({"parts": ((0, 1, 3), 49)}, "parts[0, 1] has 48 outputs from 49 on, but out has 96"),
        ({"parts": ((0, 1, 3), 2**63 - 1)}, f"parts[0, 1] has 48 outputs from {2**63 - 1} on, but out has 96"),
        ({"parts": ((0, 0, 4), 97)}, "parts[0, 0] has 97 outputs from 0 on, but out has 96"),
        ({"parts": ((0, 0, 5), 3)}, "parts[0, 0] has dtype 3, but dtypes are 0, 1 and 2"),
        ({"parts": ((0, 0, 1), 0)}, "parts[0, 0] has rank 4, but no matrices"),
    ],
)
def test_values_out_of_range_are_refused_before_anything_is_written(changes: dict[str, Any], message: str) -> None:
    arguments = right_arguments("add_lora")
    for name, (place, value) in changes.items():
        arguments[name][place] = value
    with pytest.raises(IndexError, match=re.escape(message)):
        ops.add_lora(**arguments)
    assert torch.equal(arguments["out"], torch.zeros(5, 96))


def test_no_rows_and_no_adapters() -> None:
    check(lora_case([], [], base_rows=3))
    check(lora_case([[8]], [0], base_rows=0))
