"""A step's work, taken apart and put together again for what-if questions."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from cudaprefill.engine.step_cost import StepCost, StepWork, chunk_pairs

# Predicted seconds of a step.
Cost = Callable[[StepWork], float]


def cost_of(step_cost: StepCost | None) -> Cost | None:
    """The engine's own cost model; None while it cannot tell."""
    if step_cost is None or not step_cost.known:
        return None

    def predict(work: StepWork) -> float:
        return step_cost.predict(work) or 0.0

    return predict


ChunkRange = tuple[int, int]  # start and length


def work_of(num_decodes: int, decode_context: int, chunks: Iterable[ChunkRange]) -> StepWork:
    """`decode_context`: tokens that the decodes see, in all."""
    chunks = tuple(chunks)
    return StepWork(
        chunk_tokens=sum(length for _, length in chunks),
        chunk_pairs=sum(chunk_pairs(start, length) for start, length in chunks),
        decodes=num_decodes,
        decode_context=decode_context,
    )


def trimmed(chunks: Iterable[ChunkRange], num_tokens: int) -> list[ChunkRange]:
    """The first of them, with so many tokens at most."""
    kept = []
    for start, length in chunks:
        length = min(length, num_tokens)
        num_tokens -= length
        if length:
            kept.append((start, length))
    return kept
