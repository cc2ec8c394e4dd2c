"""The second half of a layer, behind its norm: one gated MLP for all tokens, or experts."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from cudaprefill import ops
from cudaprefill.models.block_matrix import Matrix
from cudaprefill.models.config import ModelConfig
from cudaprefill.models.weights import LayerWeights

Linear = Callable[[Tensor, Matrix, Tensor | None], Tensor]
FeedForward = Callable[[Tensor, Linear], Tensor]  # [T, H] -> [T, H]


def feed_forward(config: ModelConfig, weights: LayerWeights) -> FeedForward:
    return _dense(weights, is_silu=config.activation == "silu")


def _dense(weights: LayerWeights, is_silu: bool) -> FeedForward:
    """``down @ (activation(gate @ x) * (up @ x))``; the activation is SiLU, or GELU in its tanh form."""

    def run(x: Tensor, linear: Linear) -> Tensor:
        x = linear(x, weights.gate_up, weights.gate_up_bias)
        x = ops.silu_and_mul(x) if is_silu else ops.gelu_tanh_and_mul(x)
        return linear(x, weights.down, weights.down_bias)

    return run
