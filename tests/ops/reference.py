"""The element-wise ops and the matmul as their definitions say, every step computed and rounded in a chosen dtype."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

DTYPES = [torch.float32, torch.bfloat16, torch.float16]


def rms_norm(x: Tensor, weight: Tensor, eps: float, dtype: torch.dtype) -> Tensor:
    """The last dimension of x divided by its root mean square and multiplied by the weight."""
    x = x.to(dtype)
    return x / (x.square().mean(dim=-1, keepdim=True) + eps).sqrt() * weight.to(dtype)


def silu_and_mul(x: Tensor, dtype: torch.dtype) -> Tensor:
    gate, up = x.to(dtype).chunk(2, dim=-1)
    return gate / (1 + torch.exp(-gate)) * up


def gelu_tanh_and_mul(x: Tensor, dtype: torch.dtype) -> Tensor:
    gate, up = x.to(dtype).chunk(2, dim=-1)
    return gate / 2 * (1 + torch.tanh((2 / math.pi) ** 0.5 * (gate + 0.044715 * gate**3))) * up


def expert_mlp(
    x: Tensor,
    router_logits: Tensor,
    gate_up: Tensor,
    down: Tensor,
    num_chosen: int,
    renormalise: bool,
    dtype: torch.dtype,
) -> Tensor:
    num_experts, hidden = router_logits.shape[1], x.shape[1]
    gate_up, down = gate_up.view(num_experts, -1, hidden).to(dtype), down.view(num_experts, hidden, -1).to(dtype)
    out = torch.zeros(x.shape, dtype=dtype)
    for row, logits in enumerate(router_logits.double()):
        order = torch.argsort(logits, descending=True, stable=True)[:num_chosen]
        weights = torch.softmax(logits, dim=0)[order]
        if renormalise:
            weights = weights / weights.sum()
        for expert, weight in zip(order.tolist(), weights.to(dtype), strict=True):
            inner = silu_and_mul((gate_up[expert] @ x[row].to(dtype))[None], dtype)[0]
            out[row] += weight * (down[expert] @ inner)
    return out


def rope(x: Tensor, cos_sin: Tensor, position_ids: Tensor, dtype: torch.dtype) -> Tensor:
    """x [T, heads, D] rotated at its positions; element i turns with element R / 2 + i, those from R on stay."""
    rows = cos_sin[position_ids].to(dtype)[:, None, :]
    half = cos_sin.shape[1] // 2
    cos, sin = rows[..., :half], rows[..., half:]
    x = x.to(dtype)
    first, second, rest = x[..., :half], x[..., half : 2 * half], x[..., 2 * half :]
    return torch.cat([first * cos - second * sin, second * cos + first * sin, rest], dim=-1)


def linear(x: Tensor, weight: Tensor, bias: Tensor | None, dtype: torch.dtype) -> Tensor:
    product = x.to(dtype) @ weight.to(dtype).T
    return product if bias is None else product + bias.to(dtype)


def assert_as_exact_as_torch(actual: Tensor, compute: Callable[[torch.dtype], Tensor], rounded_to: torch.dtype) -> None:
    """The error of `actual` against float64 is at most twice that of the same computation in `rounded_to`.

    Beside that, two roundings of each output to `rounded_to` are allowed: in a small tensor it is left to luck which of
    two equally exact results has the larger error. Errors are roots of sums of squares.
    """
    exact = compute(torch.float64)
    error = (actual.double() - exact).norm().item()
    torch_error = (compute(rounded_to).double() - exact).norm().item()
    rounding = 2 * torch.finfo(rounded_to).eps * exact.norm().item()
    assert error <= 2 * torch_error + rounding, f"error {error:.3g}, in torch {torch_error:.3g}"


def stored(row: Tensor, dtype: torch.dtype) -> Tensor:
    """Rounded; float16 takes what is beyond its largest number as that."""
    return (row.float().clamp(-65504, 65504) if dtype == torch.float16 != row.dtype else row).to(dtype)
