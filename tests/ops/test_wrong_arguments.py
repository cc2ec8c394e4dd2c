"""A wrong argument raises with its name, what it must be and what it is, and nothing is written."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.ops.op_calls import OPS, right_arguments


def call(op: str, arguments: dict[str, Any]) -> None:
    getattr(torch.ops.cudaprefill, op)(**arguments)


def refuse(op: str, name: str, wrong: object, message: str) -> None:
    """The call with one argument replaced raises a ValueError that begins with the op and the argument."""
    arguments = right_arguments(op)
    call(op, arguments)
    before = {key: value.clone() for key, value in arguments.items() if isinstance(value, Tensor)}
    with pytest.raises(ValueError, match=f"^{op}: {name} {re.escape(message)}"):
        call(op, {**arguments, name: wrong(arguments[name]) if callable(wrong) else wrong})
    for key, value in before.items():
        assert torch.equal(arguments[key], value), f"{key} was written"


def tensors_of(op: str) -> list[tuple[str, str]]:
    return [(op, name) for name, value in right_arguments(op).items() if isinstance(value, Tensor)]


EVERY_TENSOR = [pair for op in OPS for pair in tensors_of(op)]


def shape_text(tensor: Tensor) -> str:
    return "[" + ", ".join(map(str, tensor.shape)) + "]"


@pytest.mark.parametrize(("op", "name"), EVERY_TENSOR)
def test_another_number_of_dimensions(op: str, name: str) -> None:
    wrong = right_arguments(op)[name][None]
    with pytest.raises(ValueError, match=rf"^{op}: {name} must be .*, got {re.escape(shape_text(wrong))}"):
        call(op, {**right_arguments(op), name: wrong})


@pytest.mark.parametrize(("op", "name"), EVERY_TENSOR)
def test_a_dtype_that_no_op_takes(op: str, name: str) -> None:
    wrong = right_arguments(op)[name].to(torch.float64)
    with pytest.raises(ValueError, match=rf"^{op}: {name} must .*, got float64"):
        call(op, {**right_arguments(op), name: wrong})


# The sizes that follow from other arguments, made one larger.
SIZES = [
    *[("write_kv", "k", 1, "= [any, 2, 64], got [5, 3, 64]"), ("write_kv", "k", 2, "= [any, 2, 64], got [5, 2, 65]")],
    *[("write_kv", "v", dim, "= [5, 2, 64], got [") for dim in range(3)],
    *[("write_kv", "v_cache", dim, "= [8, 2, 16, 64], got [") for dim in range(4)],
    ("write_kv", "slot_mapping", 0, "= [5], got [6]"),
    ("rope_write_kv", "q", 2, "= [any, any, 64], got [5, 6, 65]"),
    *[("rope_write_kv", "k", dim, "= [5, 2, 64], got [") for dim in range(3)],
    *[("rope_write_kv", "v", dim, "= [5, 2, 64], got [") for dim in range(3)],
    *[("rope_write_kv", "v_cache", dim, "= [8, 2, 16, 64], got [") for dim in range(4)],
    ("rope_write_kv", "position_ids", 0, "= [5], got [6]"),
    ("rope_write_kv", "slot_mapping", 0, "= [5], got [6]"),
    ("rope_write_kv", "q_norm", 0, "= [64], got [65]"),
    ("rope_write_kv", "k_norm", 0, "= [64], got [65]"),
    ("prefill_attention", "q", 2, "= [any, any, 64], got [5, 6, 65]"),
    *[("prefill_attention", "out", dim, "= [5, 6, 64], got [") for dim in range(3)],
    *[("prefill_attention", "v_cache", dim, "= [8, 2, 16, 64], got [") for dim in range(4)],
    ("prefill_attention", "block_table", 0, "= [2, any], got [3, 3]"),
    ("prefill_attention", "cu_seqlens_q", 0, "= [3], got [4]"),
    ("decode_attention", "q", 2, "= [any, any, 64], got [2, 6, 65]"),
    *[("decode_attention", "out", dim, "= [2, 6, 64], got [") for dim in range(3)],
    *[("decode_attention", "v_cache", dim, "= [8, 2, 16, 64], got [") for dim in range(4)],
    ("decode_attention", "block_table", 0, "= [2, any], got [3, 3]"),
    ("mixed_attention", "q", 2, "= [any, any, 64], got [5, 6, 65]"),
    *[("mixed_attention", "out", dim, "= [5, 6, 64], got [") for dim in range(3)],
    *[("mixed_attention", "v_cache", dim, "= [8, 2, 16, 64], got [") for dim in range(4)],
    ("mixed_attention", "block_table", 0, "= [2, any], got [3, 3]"),
    ("mixed_attention", "cu_seqlens_q", 0, "= [3], got [4]"),
    ("rms_norm", "weight", 0, "= [48], got [49]"),
    ("add_rms_norm", "weight", 0, "= [48], got [49]"),
    *[("add_rms_norm", "residual", dim, "= [5, 48], got [") for dim in range(2)],
    *[("copy_blocks", "v_cache", dim, "= [8, 2, 16, 64], got [") for dim in range(4)],
    ("copy_blocks", "block_pairs", 1, "= [any, 2], got [2, 3]"),
    ("add_lora", "x", 0, "= [5, any], got [6, 48]"),
    ("add_lora", "parts", 2, "= [any, any, 6], got [3, 2, 7]"),
    ("add_lora", "row_starts", 0, "= [4], got [5]"),
    *[("add_lora", "scales", dim, "= [3, 2], got [") for dim in range(2)],
    ("expert_mlp", "router_logits", 0, "= [5, any], got [6, 3]"),
    ("expert_mlp", "gate_up", 1, "= [any, 48], got [240, 49]"),
    *[("expert_mlp_blocks", "gate_up", dim, "= [12, 640], got [") for dim in range(2)],
    *[("expert_mlp_blocks", "down", dim, "= [12, 544], got [") for dim in range(2)],
    ("linear", "weight", 1, "= [any, 48], got [20, 49]"),
    ("linear", "bias", 0, "= [20], got [21]"),
    *[("group_blocks", "groups", dim, "= [2, 640], got [") for dim in range(2)],
    *[("linear_blocks", "groups", dim, "= [2, 640], got [") for dim in range(2)],
    ("linear_blocks", "bias", 0, "= [20], got [21]"),
    ("gated_linear", "gate_up", 1, "= [any, 48], got [20, 49]"),
    ("gated_linear", "bias", 0, "= [20], got [21]"),
    *[("gated_linear_blocks", "groups", dim, "= [2, 640], got [") for dim in range(2)],
    ("gated_linear_blocks", "bias", 0, "= [20], got [21]"),
    *[("dequantise_rows", "groups", dim, "= [2, 640], got [") for dim in range(2)],
]


def one_larger(tensor: Tensor, dim: int) -> Tensor:
    shape = list(tensor.shape)
    shape[dim] += 1
    return torch.zeros(shape, dtype=tensor.dtype)


@pytest.mark.parametrize(("op", "name", "dim", "message"), SIZES)
def test_a_size_that_contradicts_another_argument(op: str, name: str, dim: int, message: str) -> None:
    with pytest.raises(ValueError, match=rf"^{op}: {name} must be .*{re.escape(message)}"):
        call(op, {**right_arguments(op), name: one_larger(right_arguments(op)[name], dim)})


def test_decode_takes_one_row_of_q_for_each_request() -> None:
    rows = {"q": torch.randn(3, 6, 64), "out": torch.zeros(3, 6, 64)}
    with pytest.raises(ValueError, match=r"context_lens must be .*one for each row of q = \[3\], got \[2\]"):
        call("decode_attention", {**right_arguments("decode_attention"), **rows})


# The dtypes that follow from another argument.
@pytest.mark.parametrize(
    ("op", "name", "other"),
    [
        ("write_kv", "v", "k"),
        ("write_kv", "v_cache", "k_cache"),
        ("rope_write_kv", "k", "q"),
        ("rope_write_kv", "v", "q"),
        ("rope_write_kv", "v_cache", "k_cache"),
        ("rope_write_kv", "q_norm", "q"),
        ("rope_write_kv", "k_norm", "q"),
        ("prefill_attention", "out", "q"),
        ("prefill_attention", "v_cache", "k_cache"),
        ("decode_attention", "out", "q"),
        ("decode_attention", "v_cache", "k_cache"),
        ("rms_norm", "weight", "x"),
        ("add_rms_norm", "weight", "x"),
        ("add_rms_norm", "residual", "x"),
        ("copy_blocks", "v_cache", "k_cache"),
        ("add_lora", "x", "out"),
        ("expert_mlp", "router_logits", "x"),
        ("expert_mlp", "down", "gate_up"),
    ],
)
def test_a_dtype_that_contradicts_another_argument(op: str, name: str, other: str) -> None:
    refuse(op, name, Tensor.bfloat16, f"must have the dtype of {other}, float32, got bfloat16")


@pytest.mark.parametrize(
    ("op", "name", "wanted"),
    [
        ("write_kv", "slot_mapping", "int64"),
        ("rope_write_kv", "slot_mapping", "int64"),
        ("rope_write_kv", "position_ids", "int64"),
        ("copy_blocks", "block_pairs", "int64"),
        ("prefill_attention", "block_table", "int32"),
        ("prefill_attention", "cu_seqlens_q", "int32"),
        ("prefill_attention", "context_lens", "int32"),
        ("decode_attention", "block_table", "int32"),
        ("decode_attention", "context_lens", "int32"),
        ("add_lora", "row_ids", "int32"),
        ("add_lora", "row_starts", "int32"),
        ("add_lora", "parts", "int64"),
    ],
)
def test_indices_of_the_other_width(op: str, name: str, wanted: str) -> None:
    other = {"int32": "int64", "int64": "int32"}[wanted]
    refuse(op, name, lambda tensor: tensor.to(getattr(torch, other)), f"must be {wanted}, got {other}")


@pytest.mark.parametrize(
    ("op", "name"),
    [
        *[("rope_write_kv", "cos_sin"), ("add_lora", "scales"), ("linear", "x"), ("linear", "bias")],
        *[("gated_linear", "x"), ("gated_linear", "bias")],
    ],
)
def test_what_is_float32_alone(op: str, name: str) -> None:
    refuse(op, name, Tensor.bfloat16, "must be float32, got bfloat16")


@pytest.mark.parametrize(
    ("op", "name"),
    [
        *[("write_kv", name) for name in ("k", "v", "k_cache", "v_cache")],
        *[("rope_write_kv", name) for name in ("q", "k", "v", "k_cache", "v_cache")],
        *[("prefill_attention", name) for name in ("q", "k_cache", "v_cache", "out", "block_table")],
        *[("decode_attention", name) for name in ("q", "k_cache", "v_cache", "out", "block_table")],
        *[("rms_norm", "x"), ("add_rms_norm", "x"), ("add_rms_norm", "residual")],
        *[("silu_and_mul", "x"), ("gelu_tanh_and_mul", "x")],
        *[("copy_blocks", "k_cache"), ("copy_blocks", "v_cache"), ("linear", "x"), ("linear", "weight")],
        *[("expert_mlp", name) for name in ("x", "router_logits", "gate_up", "down")],
        *[("add_lora", "out"), ("add_lora", "x"), ("gated_linear", "x"), ("gated_linear", "gate_up")],
    ],
)
def test_a_last_dimension_that_is_not_contiguous(op: str, name: str) -> None:
    refuse(op, name, every_second_element, "must be contiguous in its last dimension (stride 1), got stride 2")


@pytest.mark.parametrize(
    ("op", "name"),
    [
        ("write_kv", "slot_mapping"),
        *[("rope_write_kv", name) for name in ("slot_mapping", "position_ids", "cos_sin", "q_norm", "k_norm")],
        *[("prefill_attention", "cu_seqlens_q"), ("prefill_attention", "context_lens")],
        ("decode_attention", "context_lens"),
        *[("rms_norm", "weight"), ("add_rms_norm", "weight"), ("copy_blocks", "block_pairs"), ("linear", "bias")],
        *[("add_lora", name) for name in ("row_ids", "row_starts", "parts", "scales")],
    ],
)
def test_a_small_tensor_that_is_not_contiguous(op: str, name: str) -> None:
    refuse(op, name, every_second_element, "must be contiguous (stride 1 in dimension ")


def every_second_element(tensor: Tensor) -> Tensor:
    """The same numbers, with nothing of theirs in between."""
    return tensor.repeat_interleave(2, dim=-1)[..., ::2]


@pytest.mark.parametrize(
    ("op", "name", "wrong", "message"),
    [
        ("rms_norm", "eps", -1e-6, "must be at least 0, got -1e-06"),
        ("rms_norm", "eps", float("nan"), "must be at least 0, got nan"),
        ("add_rms_norm", "eps", -1.0, "must be at least 0, got -1"),
        ("rope_write_kv", "norm_eps", -1.0, "must be at least 0, got -1"),
        ("prefill_attention", "window", -1, "must be at least 0 (0 = all), got -1"),
        ("decode_attention", "window", -1, "must be at least 0 (0 = all), got -1"),
        ("prefill_attention", "softcap", -2.0, "must be at least 0 (0 = off), got -2"),
        ("decode_attention", "softcap", float("nan"), "must be at least 0 (0 = off), got nan"),
        ("expert_mlp", "num_chosen", 0, "must be 1 .. 3, the number of experts, got 0"),
        ("expert_mlp", "num_chosen", 4, "must be 1 .. 3, the number of experts, got 4"),
        ("expert_mlp_blocks", "num_chosen", -1, "must be 1 .. 3, the number of experts, got -1"),
        ("expert_mlp", "gate_up", torch.zeros(241, 48), "must have 3 * 2 * 40 rows, for the columns of down, got 241"),
        ("expert_mlp", "down", torch.zeros(143, 40), "must have 3 * 48 rows, for the columns of x, got 143"),
        ("expert_mlp_blocks", "gate_up_format", 4, "must be 2 (Q4_0), 3"),
    ],
)
def test_numbers_out_of_range(op: str, name: str, wrong: float, message: str) -> None:
    refuse(op, name, wrong, message)


@pytest.mark.parametrize("op", ["rope_write_kv", "prefill_attention", "decode_attention"])
def test_query_heads_that_no_kv_head_divides(op: str) -> None:
    arguments = right_arguments(op)
    changed: dict[str, Any] = {name: arguments[name][:, :5] for name in ("q", "out") if name in arguments}
    with pytest.raises(ValueError, match=f"^{op}: q must have a multiple of the 2 heads of k_cache, got 5"):
        call(op, {**arguments, **changed})


@pytest.mark.parametrize("rotary_dim", [63, 66])
def test_a_rotary_dim_that_is_odd_or_larger_than_the_head(rotary_dim: int) -> None:
    message = f"must have an even rotary_dim of at most the head_size 64, got {rotary_dim}"
    refuse("rope_write_kv", "cos_sin", torch.randn(50, rotary_dim), message)


@pytest.mark.parametrize("op", ["silu_and_mul", "gelu_tanh_and_mul"])
def test_an_odd_number_of_columns_cannot_be_gate_and_up(op: str) -> None:
    refuse(op, "x", torch.randn(5, 97), "must have an even number of columns, got 97")


@pytest.mark.parametrize("op", ["write_kv", "copy_blocks"])
def test_a_cache_without_slots(op: str) -> None:
    empty = torch.empty(8, 2, 0, 64)
    with pytest.raises(ValueError, match=f"^{op}: k_cache must have a block_size of at least 1, got 0"):
        call(op, {**right_arguments(op), "k_cache": empty, "v_cache": empty})


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device: nothing can lie on another device")
@pytest.mark.parametrize(("op", "name"), [pair for pair in EVERY_TENSOR if "linear" not in pair[0]])
def test_a_tensor_on_another_device(op: str, name: str) -> None:
    arguments = {
        key: value.cuda() if isinstance(value, Tensor) and key != name else value
        for key, value in right_arguments(op).items()
    }
    with pytest.raises(ValueError, match=rf"^{op}: .* must be on the device of .*, got c"):
        call(op, arguments)
