"""What a step computes, as a cost model sees it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class StepWork:
    num_decodes: int
    decode_context: int  # tokens that the decodes attend to, in all
    chunks: tuple[tuple[int, int], ...]  # start and length of each

    @property
    def num_chunk_tokens(self) -> int:
        return sum(length for _, length in self.chunks)

    @property
    def num_tokens(self) -> int:
        return self.num_decodes + self.num_chunk_tokens

    def trimmed(self, num_chunk_tokens: int) -> StepWork:
        """The same with so many tokens of chunks at most: the last ones give way."""
        left = num_chunk_tokens
        chunks = []
        for start, length in self.chunks:
            length = min(length, left)
            left -= length
            if length:
                chunks.append((start, length))
        return dataclasses.replace(self, chunks=tuple(chunks))


# Predicted seconds of a step.
Cost = Callable[[StepWork], float]
