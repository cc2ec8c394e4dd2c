"""A machine whose steps last what its coefficients say, for tests of what is learned from durations."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from cudaprefill.engine.step_cost import StepWork


@dataclass
class SyntheticMachine:
    """Seconds; a noise of 0.05 makes each step up to 5 % longer or shorter."""

    base: float
    chunk_base: float
    chunk_token: float
    chunk_pair: float
    decode: float
    context_token: float
    noise: float = 0.0
    slowness: float = 1.0
    random_numbers: random.Random = field(default_factory=lambda: random.Random(0))

    def seconds(self, work: StepWork) -> float:
        exact = (
            self.base
            + (self.chunk_base if work.chunk_tokens else 0.0)
            + self.chunk_token * work.chunk_tokens
            + self.chunk_pair * work.chunk_pairs
            + self.decode * work.decodes
            + self.context_token * work.decode_context
        )
        return self.slowness * exact * (1.0 + self.noise * self.random_numbers.uniform(-1.0, 1.0))


def slow_machine(noise: float = 0.0) -> SyntheticMachine:
    """About a small model on a CPU."""
    return SyntheticMachine(0.010, 0.002, 1.8e-3, 4e-7, 4e-3, 4e-7, noise)


def fast_machine(noise: float = 0.0) -> SyntheticMachine:
    """About a large model on a GPU."""
    return SyntheticMachine(0.006, 0.002, 3e-5, 3e-9, 3e-5, 2e-8, noise)
