"""The products of activations with weight matrices, as the layers of a decoder ask for them."""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional

from cudaprefill import ops
from cudaprefill.models.block_matrix import BlockMatrix, Matrix


class Linear:
    """By torch, with activations and weights of one dtype."""

    def __call__(self, x: Tensor, weight: Matrix, bias: Tensor | None) -> Tensor:
        """``x @ weight.T + bias``. x: [T, K]; weight: [L, K] -> [T, L]."""
        assert isinstance(weight, Tensor)
        return functional.linear(x, weight, bias)

    def gated(self, x: Tensor, gate_up: Matrix, bias: Tensor | None, activation: str) -> Tensor:
        """``activation(gate @ x) * (up @ x)``. x: [T, K]; gate_up: [2 I, K], gate above up -> [T, I]."""
        return ops.activate_and_mul(self(x, gate_up, bias), activation)


class CpuLinear(Linear):
    """By the kernels for CPUs: float32 in and out whatever the weight is stored as."""

    def __call__(self, x: Tensor, weight: Matrix, bias: Tensor | None) -> Tensor:
        if isinstance(weight, BlockMatrix):
            return weight.linear(x, bias)
        return ops.linear(x, weight, bias)

    def gated(self, x: Tensor, gate_up: Matrix, bias: Tensor | None, activation: str) -> Tensor:
        if isinstance(gate_up, BlockMatrix):
            return gate_up.gated_linear(x, bias, activation)
        return ops.gated_linear(x, gate_up, activation, bias)
