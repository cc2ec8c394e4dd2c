"""The second half of a layer, behind its norm: one gated MLP for all tokens, or experts."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from cudaprefill import ops
from cudaprefill.models.block_matrix import BlockMatrix
from cudaprefill.models.config import ExpertsConfig, LayerConfig, ModelConfig
from cudaprefill.models.linear import Linear
from cudaprefill.models.weights import LayerWeights

FeedForward = Callable[[Tensor, Linear], Tensor]  # [T, H] -> [T, H]


def feed_forward(config: ModelConfig, layer: LayerConfig, weights: LayerWeights) -> FeedForward:
    if layer.experts is not None:
        return _experts(layer.experts, weights)
    return _dense(weights, config.activation)


def _dense(weights: LayerWeights, activation: str) -> FeedForward:
    """``down @ (activation(gate @ x) * (up @ x))``; the activation is SiLU, or GELU in its tanh form."""

    def run(x: Tensor, linear: Linear) -> Tensor:
        x = linear.gated(x, weights.gate_up, weights.gate_up_bias, activation)
        return linear(x, weights.down, weights.down_bias)

    return run


def _experts(experts: ExpertsConfig, weights: LayerWeights) -> FeedForward:
    """Each token through those that the router prefers; `gate_up` and `down` hold all of them."""
    router, gate_up, down = weights.router, weights.gate_up, weights.down
    num_chosen, renormalise = experts.num_chosen, experts.renormalise
    assert router is not None
    if isinstance(gate_up, BlockMatrix) and isinstance(down, BlockMatrix):
        (above,), (below,) = gate_up.parts, down.parts
        inner_size, bits = experts.intermediate_size, down.activation_bits

        def run_blocks(x: Tensor, linear: Linear) -> Tensor:
            logits = linear(x, router, None)
            matrices = (above.groups, above.block_format, below.groups, below.block_format)
            return ops.expert_mlp_blocks(x, logits, *matrices, inner_size, num_chosen, renormalise, bits)

        return run_blocks
    assert isinstance(gate_up, Tensor)
    assert isinstance(down, Tensor)

    def run(x: Tensor, linear: Linear) -> Tensor:
        return ops.expert_mlp(x, linear(x, router, None), gate_up, down, num_chosen, renormalise)

    return run
