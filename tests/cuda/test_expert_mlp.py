"""The kernels of expert_mlp against float64, at the sizes where they differ inside."""

from __future__ import annotations

import pytest
import torch

from tests.ops.expert_cases import expert_case

DTYPES = (torch.float32, torch.bfloat16, torch.float16)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("num_tokens", [1, 15, 16, 63, 64, 65, 130])
def test_tiles_of_one_expert(backend, num_tokens, dtype):
    expert_case(num_tokens, 1, 1, hidden=64, inner=32, dtype=dtype).check()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("hidden", "inner"), [(8, 8), (72, 40), (128, 32), (136, 104)])
def test_sizes_that_no_tile_divides(backend, hidden, inner, dtype):
    expert_case(20, 3, 2, hidden=hidden, inner=inner, dtype=dtype).check()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("num_experts", "num_chosen"), [(8, 2), (33, 32), (128, 8), (256, 3)])
@pytest.mark.parametrize("renormalise", [True, False])
def test_numbers_of_experts(backend, num_experts, num_chosen, renormalise, dtype):
    expert_case(5, num_experts, num_chosen, hidden=16, inner=8, renormalise=renormalise, dtype=dtype).check()


@pytest.mark.parametrize("dtype", DTYPES[1:])
def test_which_pair_comes_first_in_a_tile_changes_nothing(emulated, dtype):
    case = expert_case(50, 3, 2, hidden=16, inner=8, dtype=dtype)
    expected = case.run()
    emulated.set_seed(7)
    assert torch.equal(case.run(), expected)


def test_weights_far_beyond_32_bit_offsets(emulated):
    """The last expert lies behind 2**31 elements, in memory of which only what is used is ever touched."""
    case = expert_case(3, 3, 1, hidden=16, inner=8, dtype=torch.bfloat16)
    case.router_logits[:, 2] = 50.0
    expected = case.run()
    stride = 2**31 // 32 + 8
    wide = torch.empty(3 * 16 * stride, dtype=torch.bfloat16).as_strided((48, 16), (stride, 1))
    wide[32:] = case.gate_up[32:]
    case.gate_up = wide
    assert torch.equal(case.run(), expected)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"hidden": 44}, "expert_mlp: hidden_size must be a multiple of 8, got 44"),
        ({"inner": 12}, "expert_mlp: inner_size must be a multiple of 8, got 12"),
        ({"num_experts": 257}, "expert_mlp: there must be at most 256 experts, got 257"),
        ({"num_experts": 64, "num_chosen": 33}, "expert_mlp: num_chosen must be at most 32, got 33"),
    ],
)
def test_what_the_kernels_cannot_do_is_refused_by_name(backend, change, message):
    case = expert_case(2, **{"num_experts": 4, "dtype": torch.bfloat16, **change})
    with pytest.raises(Exception, match=message):
        case.run()


def test_weights_of_another_dtype_are_refused(backend):
    case = expert_case(2)
    case.gate_up, case.down = case.gate_up.bfloat16(), case.down.bfloat16()
    with pytest.raises(Exception, match="expert_mlp: on a GPU the weights must have the dtype of x"):
        case.run()
