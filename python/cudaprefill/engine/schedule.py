"""What one step computes."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from cudaprefill.engine.request import Request
    from cudaprefill.engine.request_queue import RequestRows
    from cudaprefill.engine.step_cost import StepWork


class Chunk(NamedTuple):
    """Tokens start .. start + length of one request, prompt or (after a preemption) output."""

    request: Request
    start: int
    length: int
    hit_tokens: int  # before `start`, found in the prefix index; only in the first chunk after an admission
    is_last: bool  # the prefill ends with it, so its last token's logits are sampled


class GivenTokens(NamedTuple):
    """Virtual tokens of one request, from `start` to the last, whose K and V are given; written in this step."""

    request: Request
    start: int
    slots: NDArray[np.int64]  # one a token


class BatchArrays(NamedTuple):
    """The fields of `Batch` as numpy views of memory that the next `Scheduler.build` overwrites."""

    token_ids: NDArray[np.int64]  # [T]
    position_ids: NDArray[np.int64]  # [T]
    slot_mapping: NDArray[np.int64]  # [T]
    cu_seqlens_q: NDArray[np.int32]  # [B + 1]
    context_lens: NDArray[np.int32]  # [B]
    block_table: NDArray[np.int32]  # [B, M]
    logits_rows: NDArray[np.int64]  # [R]
    logits_requests: NDArray[np.int64]  # [R]
    block_copies: NDArray[np.int64]  # [C, 2]
    num_decodes: int


def sampled_by(decodes: RequestRows, chunks: Sequence[Chunk]) -> tuple[tuple[Request, ...], NDArray[np.int64]]:
    """Who gets a token of a step, and which row of its logits each is drawn from; see `Schedule`."""
    ends = [(chunk.request, *chunk.request.unforked_siblings) for chunk in chunks if chunk.is_last]
    num_decodes = len(decodes.requests)
    tokens_per_end = np.array([len(members) for members in ends], dtype=np.int64)
    end_rows = np.repeat(num_decodes + np.arange(len(ends)), tokens_per_end)
    sampled = (*decodes.requests, *itertools.chain.from_iterable(ends))
    return sampled, np.concatenate((np.arange(num_decodes), end_rows))


@dataclass(eq=False)
class Schedule:
    """Decodes first, then chunks; what `end_step` fills in is empty until then."""

    number: int  # counts from 1
    token_budget: int
    decodes: RequestRows
    chunks: list[Chunk]
    chunk_rows: NDArray[np.int32]  # of the request table
    given: list[GivenTokens]
    preempted: list[Request]  # lost their blocks so that others could go on
    sampled: Sequence[Request]  # who gets the sampled tokens; a request and its siblings share one row of logits
    sample_rows: NDArray[np.int64]  # [len(sampled)]: the row of the logits each token is drawn from
    num_waiting: int
    waiting_for: str  # what the head of the queue lacks: "seats: ...", "blocks: ...", "budget", "itl target", or ""
    start: float  # seconds of the scheduler's clock
    work: StepWork
    predicted_duration: float | None  # seconds to its tokens; None while too little is known

    finished: list[Request] = field(default_factory=list)
    num_blocks_taken: int = 0
    num_blocks_freed: int = 0
    num_blocks_evicted: int = 0
    evicted_hashes: NDArray[np.uint64] | None = None  # of prefixes, if recorded

    @property
    def num_tokens(self) -> int:
        return len(self.decodes.requests) + sum(chunk.length for chunk in self.chunks)
