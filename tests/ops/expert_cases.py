"""Calls of expert_mlp: tokens, router logits and the matrices of all experts."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from cudaprefill import ops
from tests.ops import reference
from tests.ops.reference import assert_as_exact_as_torch


@dataclass
class ExpertCase:
    x: Tensor
    router_logits: Tensor
    gate_up: Tensor
    down: Tensor
    num_chosen: int
    renormalise: bool

    @property
    def num_experts(self) -> int:
        return self.router_logits.shape[1]

    def run(self) -> Tensor:
        arguments = (self.x, self.router_logits, self.gate_up, self.down, self.num_chosen, self.renormalise)
        return ops.expert_mlp(*arguments)

    def compute(self, dtype: torch.dtype) -> Tensor:
        arguments = (self.x, self.router_logits, self.gate_up, self.down, self.num_chosen, self.renormalise)
        return reference.expert_mlp(*arguments, dtype)

    def check(self) -> None:
        out = self.run()
        assert (out.dtype, out.shape) == (self.x.dtype, self.x.shape)
        assert_as_exact_as_torch(out, self.compute, self.x.dtype)


def expert_case(
    num_tokens: int,
    num_experts: int = 6,
    num_chosen: int = 2,
    *,
    hidden: int = 48,
    inner: int = 40,
    renormalise: bool = True,
    dtype: torch.dtype = torch.float32,
    seed: int = 0,
) -> ExpertCase:
    generator = torch.Generator().manual_seed(seed)

    def random(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator)

    return ExpertCase(
        x=random(num_tokens, hidden).to(dtype),
        router_logits=(2 * random(num_tokens, num_experts)).to(dtype),
        gate_up=(random(num_experts * 2 * inner, hidden) * 1.5 / hidden**0.5).to(dtype),
        down=(random(num_experts * hidden, inner) * 1.5 / inner**0.5).to(dtype),
        num_chosen=num_chosen,
        renormalise=renormalise,
    )
