"""What happened: the one source of metrics, traces, explanations and the terminal UI."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np
    from numpy.typing import NDArray

    from cudaprefill._core import BlockPool
    from cudaprefill.engine.schedule import Schedule


class RequestEventKind(enum.Enum):
    """The stations of a request, in the order of a first visit; those from SCHEDULED to PREEMPTED may come again."""

    ARRIVED = "arrived"  # received from the client
    QUEUED = "queued"  # accepted by the scheduler
    SCHEDULED = "scheduled"  # left the queue
    CHUNK = "chunk"  # a part of its prefill was computed
    FIRST_TOKEN = "first_token"
    PREEMPTED = "preempted"  # lost its blocks and went back to the queue
    FINISHED = "finished"


@dataclass(frozen=True, slots=True)
class RequestTokens:
    """A request's tokens, for those who explain or replay. Nothing is copied: to be read only."""

    prompt_token_ids: Sequence[int]
    output_token_ids: Sequence[int]  # empty on arrival
    block_hashes: NDArray[np.uint64]  # of the full blocks of both, see RequestTable.block_hashes


@dataclass(frozen=True, slots=True)
class RequestEvent:
    """One station of one request. Fields that a kind does not name below are zero or empty."""

    kind: RequestEventKind
    request_id: str
    time: float  # seconds of the engine's clock
    step: int  # the step in which, or after which, it happened
    start: int = 0  # CHUNK: the first token
    length: int = 0  # CHUNK: how many tokens
    hit_tokens: int = 0  # SCHEDULED, and the CHUNK that follows: tokens before it found in the prefix index
    reason: str = ""  # FINISHED: "stop", "length", "abort" or "error"
    number: int = 0  # every kind: the request's, from 1 on and never given to another one of this engine
    priority: int = 0  # ARRIVED
    num_prompt_tokens: int = 0  # ARRIVED: virtual ones among them
    num_virtual_tokens: int = 0  # ARRIVED: the first of these
    adapter: str | None = None  # ARRIVED: its name
    max_tokens: int | None = None  # ARRIVED: None where only the context bounds the output
    num_output_tokens: int = 0  # FINISHED
    tokenized: float | None = None  # QUEUED: when its prompt was tokens, seconds; None if nobody said
    tokens: RequestTokens | None = None  # ARRIVED, FINISHED: if prefixes are recorded and it has tokens of its own


@dataclass(frozen=True, slots=True)
class ChunkSpan:
    """Tokens start .. start + length of one request."""

    request_id: str
    start: int
    length: int
    hit_tokens: int
    is_last: bool
    number: int = 0  # the request's


@dataclass(frozen=True, slots=True)
class StepEvent:
    """One step of the engine."""

    number: int
    start: float  # seconds of the engine's clock
    duration: float  # seconds
    token_budget: int
    num_tokens: int  # computed: one for each decode, and the chunks
    decode_ids: tuple[str, ...]
    chunks: tuple[ChunkSpan, ...]
    preempted_ids: tuple[str, ...]
    finished_ids: tuple[str, ...]  # by a token of this step, or an error; aborts come as RequestEvents only
    num_waiting: int
    waiting_for: str  # what the head of the queue lacked: "seats: ...", "blocks: ...", "budget", "itl target", or ""
    num_blocks_taken: int  # since the step before
    num_blocks_freed: int
    num_blocks_evicted: int
    num_free_blocks: int  # after the step
    num_cached_blocks: int
    num_used_blocks: int
    evicted_hashes: NDArray[np.uint64] | None = None  # of prefixes that gave way since the step before, if recorded
    decode_numbers: tuple[int, ...] = ()
    preempted_numbers: tuple[int, ...] = ()
    finished_numbers: tuple[int, ...] = ()
    predicted_duration: float | None = None  # seconds from the start to the tokens, as expected; None: not known yet

    @classmethod
    def of(cls, schedule: Schedule, pool: BlockPool, start: float, duration: float) -> StepEvent:
        """The event of a step that has just ended."""
        return cls(
            number=schedule.number,
            start=start,
            duration=duration,
            token_budget=schedule.token_budget,
            num_tokens=schedule.num_tokens,
            decode_ids=schedule.decodes.ids,
            chunks=tuple(
                ChunkSpan(request.request_id, start, length, hit_tokens, is_last, request.number)
                for request, start, length, hit_tokens, is_last in schedule.chunks
            ),
            preempted_ids=tuple(request.request_id for request in schedule.preempted),
            finished_ids=tuple(request.request_id for request in schedule.finished),
            num_waiting=schedule.num_waiting,
            waiting_for=schedule.waiting_for,
            num_blocks_taken=schedule.num_blocks_taken,
            num_blocks_freed=schedule.num_blocks_freed,
            num_blocks_evicted=schedule.num_blocks_evicted,
            num_free_blocks=pool.num_free,
            num_cached_blocks=pool.num_cached,
            num_used_blocks=pool.num_used,
            evicted_hashes=schedule.evicted_hashes,
            decode_numbers=schedule.decodes.numbers,
            preempted_numbers=tuple(request.number for request in schedule.preempted),
            finished_numbers=tuple(request.number for request in schedule.finished),
            predicted_duration=schedule.predicted_duration,
        )
