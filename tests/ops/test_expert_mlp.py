"""expert_mlp against float64: a loop over the tokens and the experts that each has chosen."""

from __future__ import annotations

import math

import pytest
import torch

from cudaprefill import ops
from tests.ops.block_matrices import groups_of, random_blocks, values_of
from tests.ops.expert_cases import expert_case
from tests.ops.reference import DTYPES


@pytest.mark.parametrize("renormalise", [True, False])
@pytest.mark.parametrize("num_tokens", [1, 2, 17, 70])
@pytest.mark.parametrize(("num_experts", "num_chosen"), [(1, 1), (8, 2), (33, 4), (128, 8)])
def test_tokens_and_experts(num_tokens: int, num_experts: int, num_chosen: int, renormalise: bool) -> None:
    expert_case(num_tokens, num_experts, num_chosen, renormalise=renormalise).check()


@pytest.mark.parametrize("dtype", DTYPES)
def test_weights_of_every_dtype(dtype: torch.dtype) -> None:
    case = expert_case(30, hidden=96, inner=112)
    case.gate_up, case.down = case.gate_up.to(dtype), case.down.to(dtype)
    case.check()


def test_all_tokens_choose_the_same_experts() -> None:
    case = expert_case(150, 5)
    case.router_logits[:] = torch.tensor([0.0, 3.0, -1.0, 2.0, 1.0])
    case.check()


def test_experts_that_nobody_chose_are_not_read() -> None:
    case = expert_case(20)
    case.router_logits[:, [0, 3]] = -50.0
    expected = case.run()
    case.gate_up.view(6, -1)[[0, 3]] = math.nan
    case.down.view(6, -1)[[0, 3]] = math.nan
    assert torch.equal(case.run(), expected)


def test_of_equal_logits_the_first_experts_are_chosen() -> None:
    case = expert_case(9, 40, 5)
    case.router_logits.zero_()
    case.router_logits[:, 37] = 1.0
    case.gate_up.view(40, -1)[4:37] = math.nan  # chosen: 37, 0, 1, 2, 3
    assert case.run().isfinite().all()


def test_nan_in_a_row_stays_in_that_row() -> None:
    case = expert_case(20, 40, 4)
    expected = case.run()
    case.x[3] = math.nan
    case.router_logits[7] = math.nan
    case.router_logits[11, 5] = math.nan
    out = case.run()
    others = [row for row in range(20) if row not in (3, 7, 11)]
    # Not to the bit: other rows choose other experts, and `linear` has other ways for few rows and for many.
    torch.testing.assert_close(out[others], expected[others], rtol=1e-5, atol=1e-5)
    assert out[[3, 7, 11]].isnan().all()


def test_a_token_gets_the_same_alone_and_among_others() -> None:
    case = expert_case(40)
    out = case.run()
    for row in (0, 13, 39):
        alone = expert_case(40)
        alone.x, alone.router_logits = case.x[row : row + 1], case.router_logits[row : row + 1]
        torch.testing.assert_close(alone.run(), out[row : row + 1], rtol=1e-5, atol=1e-5)


def test_rows_that_do_not_adjoin() -> None:
    case = expert_case(10)
    wide, logits = torch.full((10, 64), math.nan), torch.full((10, 16), math.nan)
    wide[:, 8:56], logits[:, 4:10] = case.x, case.router_logits
    case.x, case.router_logits = wide[:, 8:56], logits[:, 4:10]
    case.check()


def test_no_tokens() -> None:
    assert expert_case(0).run().shape == (0, 48)


@pytest.mark.parametrize("bits", [32, 16, 8])
@pytest.mark.parametrize("num_tokens", [1, 60])
@pytest.mark.parametrize(("gate_up_format", "down_format"), [(2, 2), (3, 8), (12, 14)])
def test_blocks_give_what_their_values_give(num_tokens: int, gate_up_format: int, down_format: int, bits: int) -> None:
    case = expert_case(num_tokens, 3, hidden=256, inner=256)
    gate_up = random_blocks(gate_up_format, 3 * 2 * 256, 256)
    down = random_blocks(down_format, 3 * 256, 256)
    case.gate_up, case.down = values_of(gate_up, gate_up_format), values_of(down, down_format)
    matrices = (groups_of(gate_up, gate_up_format), gate_up_format, groups_of(down, down_format), down_format)
    out = ops.expert_mlp_blocks(case.x, case.router_logits, *matrices, 256, 2, True, bits)
    expected = case.compute(torch.float64)
    error = ((out - expected).norm() / expected.norm()).item()
    assert error < {8: 0.02, 16: 2e-4, 32: 1e-5}[bits], f"relative error {error:.3g}"
