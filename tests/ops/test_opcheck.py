"""The ops keep what their schemas say, and their fakes say what they give."""

from __future__ import annotations

import pytest
import torch

from cudaprefill import ops
from tests.ops.op_calls import OPS, right_arguments


@pytest.mark.parametrize("op", OPS)
def test_opcheck(op: str) -> None:
    torch.library.opcheck(getattr(torch.ops.cudaprefill, op).default, (), right_arguments(op))


def test_opcheck_without_the_optional_tensors() -> None:
    linears = ["linear", "linear_blocks", "gated_linear", "gated_linear_blocks"]
    for op, optional in [("rope_write_kv", ["q_norm", "k_norm"]), *((linear, ["bias"]) for linear in linears)]:
        arguments = {**right_arguments(op), **dict.fromkeys(optional)}
        torch.library.opcheck(getattr(torch.ops.cudaprefill, op).default, (), arguments)


@pytest.mark.parametrize("op", OPS)
def test_every_op_can_be_read_about(op: str) -> None:
    function = getattr(ops, op)
    assert len(function.__doc__) > 50
