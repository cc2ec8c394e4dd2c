"""What the chunks of one step may use up."""

from __future__ import annotations

import math
from dataclasses import dataclass

from cudaprefill.engine.step_cost import StepCost, StepWork, chunk_pairs

# While a step has to keep to a target: what it gives to prompts in any case, so that none starves.
LEAST_CHUNK_TOKENS = 16
# While nothing is predicted a step gets so many; later, at most this many times as many as any step had before, so that
# the unknown is explored step by step.
_FIRST_CHUNK_TOKENS = 64
_GROWTH = 2
# Mean deviations to spare; with noise of the usual kind they are two standard deviations.
_MARGIN = 2.5


@dataclass(slots=True)
class _Limit:
    """Something that chunks use up."""

    left: float
    per_token: float
    per_pair: float

    def tokens_at(self, start: int) -> float:
        """The most tokens of a chunk that starts at `start`: per_pair / 2 * n**2 + slope * n <= left."""
        if self.left <= 0.0:
            return 0.0
        slope = self.per_token + self.per_pair * start
        root = math.sqrt(slope * slope + 2.0 * self.per_pair * self.left)
        return 2.0 * self.left / (slope + root) if root > 0.0 else math.inf

    def spend(self, start: int, length: int) -> None:
        self.left -= self.per_token * length + self.per_pair * chunk_pairs(start, length)


class ChunkRoom:
    """What chunks may use up in one step: tokens, and where there is a target, time."""

    def __init__(self, tokens: int) -> None:
        self.tokens = tokens  # of the budget
        self._limits: list[_Limit] = []
        self._least = 0

    def keep_to(self, target: float, cost: StepCost, decodes: StepWork, *, yields: bool = False) -> None:
        """The step must not let its decodes wait for more than `target` seconds, pause included.

        It is planned as if it lasted longer than predicted by some times what steps are off on average.

        yields: the target gives way where decodes take most of it: chunks get as long as the decodes alone.
        """
        one_token = cost.predict(decodes._replace(chunk_tokens=1))
        if one_token is not None:
            base = one_token - cost.seconds_per_chunk_token
            seconds = (target - cost.pause) / (1.0 + _MARGIN * cost.deviation) - base
            if yields:
                seconds = max(seconds, cost.predict(decodes) or 0.0)
            self._limits.append(_Limit(seconds, cost.seconds_per_chunk_token, cost.seconds_per_chunk_pair))
        growth = _GROWTH if cost.known else 0
        tokens = max(growth * cost.max_chunk_tokens, _FIRST_CHUNK_TOKENS)
        pairs = max(growth * cost.max_chunk_pairs, chunk_pairs(0, _FIRST_CHUNK_TOKENS))
        self._limits += [_Limit(tokens, 1.0, 0.0), _Limit(pairs, 0.0, 1.0)]
        self._least = LEAST_CHUNK_TOKENS

    def tokens_at(self, start: int) -> int:
        """The most tokens that a chunk may have that starts at `start`."""
        if not self._limits:
            return self.tokens
        most = min(limit.tokens_at(start) for limit in self._limits)
        return min(self.tokens, max(int(min(most, self.tokens)), self._least))

    def spend(self, start: int, length: int) -> None:
        """A chunk of `length` tokens from `start` on is planned."""
        self.tokens -= length
        self._least = max(0, self._least - length)
        for limit in self._limits:
            limit.spend(start, length)
